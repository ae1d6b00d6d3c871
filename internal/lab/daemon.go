package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"headgate/internal/lab/backend"
)

// Daemon is a real server program that runs on a host.
type Daemon struct {
	cmd *Cmd
	log bytes.Buffer // complete after Wait
}

// Nginx describes an nginx with one worker process.
type Nginx struct {
	Port     int    // where it listens, IPv4 and IPv6
	Upstream string // host:port to pass everything on to; empty: static files

	// Connections bounds those of the worker, to clients and to the
	// upstream together; 0 means 4096.
	Connections int
}

// StartNginx starts nginx in the host's namespace and cgroup and returns when
// it listens. Without an upstream it serves a short file at / and one of
// backend.BigSize bytes at /big.
func (h *Host) StartNginx(ctx context.Context, n Nginx) (*Daemon, error) {
	return h.StartNginxIn(ctx, h.Cgroup, n)
}

// StartNginxIn is StartNginx with a cgroup of the caller's choice.
func (h *Host) StartNginxIn(ctx context.Context, group *Cgroup, n Nginx) (*Daemon, error) {
	path, err := program("nginx", "nginx-light")
	if err != nil {
		return nil, err
	}
	dir, err := h.lab.tempDir("nginx")
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		"nginx.conf": []byte(n.config(dir)),
		"index.html": []byte("ok\n"),
		"big":        bytes.Repeat([]byte("0123456789abcde\n"), backend.BigSize/16),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return nil, err
		}
	}
	return h.startDaemon(ctx, group, n.Port, path, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-e", "stderr")
}

func (n Nginx) config(dir string) string {
	connections := n.Connections
	if connections == 0 {
		connections = 4096
	}
	location, upstream := "root "+dir+";", ""
	if n.Upstream != "" {
		// Connections to the upstream are kept: one for each request would
		// meet its own predecessors in TIME_WAIT after half a minute.
		upstream = "\tupstream behind { server " + n.Upstream + "; keepalive 64; }\n"
		location = `proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection "";`
	}
	var temp strings.Builder
	for _, module := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temp, "\t%s_temp_path %s/%s;\n", module, dir, module)
	}
	return fmt.Sprintf(`daemon off;
user root;
worker_processes 1;
worker_rlimit_nofile %[1]d;
pid %[2]s/nginx.pid;
error_log stderr error;
events { worker_connections %[3]d; }
http {
	access_log off;
	keepalive_requests 1000000;
%[4]s%[7]s	server {
		listen %[5]d;
		listen [::]:%[5]d;
		location / { %[6]s }
	}
}
`, connections+64, dir, connections, temp.String(), n.Port, location, upstream)
}

// StartRedis starts redis in the host's namespace and cgroup, listening on
// all addresses, with nothing saved and its DEBUG command allowed, and returns
// when it listens.
func (h *Host) StartRedis(ctx context.Context, port int) (*Daemon, error) {
	path, err := program("redis-server", "redis-server")
	if err != nil {
		return nil, err
	}
	dir, err := h.lab.tempDir("redis")
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "redis.conf")
	text := fmt.Sprintf("port %d\nbind * -::*\nprotected-mode no\ndir %s\nsave \"\"\nappendonly no\n"+
		"daemonize no\nenable-debug-command yes\nlogfile \"\"\n", port, dir)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return nil, err
	}
	return h.startDaemon(ctx, h.Cgroup, port, path, conf)
}

// StartProgram starts a server program in the host's namespace and cgroup, and
// returns when it listens on the port.
func (h *Host) StartProgram(ctx context.Context, port int, name string, args ...string) (*Daemon, error) {
	path, err := program(name, name)
	if err != nil {
		return nil, err
	}
	return h.startDaemon(ctx, h.Cgroup, port, path, args...)
}

func (h *Host) startDaemon(ctx context.Context, group *Cgroup, port int, name string, args ...string) (*Daemon, error) {
	return h.startDaemonAs(ctx, nil, group, port, name, args...)
}

// startDaemonAs starts a daemon as another user, or as this one with as nil.
func (h *Host) startDaemonAs(ctx context.Context, as *syscall.Credential, group *Cgroup, port int, name string, args ...string) (*Daemon, error) {
	if h.Listens(port) {
		return nil, fmt.Errorf("starting %s on host %s: port %d is in use", name, h.Name, port)
	}
	d := &Daemon{cmd: h.Command(ctx, name, args...)}
	d.cmd.Cgroup = group
	if as != nil {
		d.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
		d.cmd.Dir = "/"
	}
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s on host %s: %w", name, h.Name, err)
	}
	ended := make(chan struct{})
	go func() { _ = d.cmd.Wait(); close(ended) }()

	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		if h.Listens(port) {
			return d, nil
		}
		select {
		case <-ended:
			return nil, fmt.Errorf("%s on host %s: %w: %s", name, h.Name, d.cmd.Wait(), strings.TrimSpace(d.log.String()))
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%s on host %s does not listen on port %d: %w", name, h.Name, port, ctx.Err()), d.Stop())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// PID returns the process id of the daemon.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Stop asks the daemon to end, and waits for its end; after five seconds it
// is killed.
func (d *Daemon) Stop() error {
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	killer := time.AfterFunc(5*time.Second, func() { _ = d.cmd.Process.Kill() })
	defer killer.Stop()
	_ = d.cmd.Wait() // how it ended is no matter
	return nil
}

// Listens says whether a TCP socket of the host listens on the port. It reads
// the kernel's tables and makes no connection.
func (h *Host) Listens(port int) bool {
	found := false
	_ = h.Do(func() error {
		for _, table := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
			text, err := os.ReadFile(table)
			found = found || err == nil && listed(string(text), port)
		}
		return nil
	})
	return found
}

// listed looks for a listening socket (state 0A) on the port in the text of
// /proc/net/tcp or tcp6.
func listed(table string, port int) bool {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != "0A" {
			continue
		}
		_, hex, _ := strings.Cut(fields[1], ":")
		if p, err := strconv.ParseUint(hex, 16, 16); err == nil && int(p) == port {
			return true
		}
	}
	return false
}

// program finds a server's program, also where only root's PATH looks.
func program(name, pkg string) (string, error) {
	for _, candidate := range []string{name, "/usr/sbin/" + name, "/usr/local/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed: apt-get install %s", name, pkg)
}
