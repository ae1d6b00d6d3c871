package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// Postgres is a PostgreSQL server that runs on a host, as the user postgres.
// It trusts everybody who connects to its database postgres.
type Postgres struct {
	*Daemon

	// Socket is the directory of its Unix socket, which no gate is in front of,
	// and Programs that of its clients.
	Socket, Programs string
}

// StartPostgres makes a database cluster that goes with the lab, starts its
// server in the host's namespace and cgroup, on all addresses, and returns when
// it listens. Nothing is ever written through to the disk.
func (h *Host) StartPostgres(ctx context.Context, port, connections int) (*Postgres, error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	as, err := userPostgres()
	if err != nil {
		return nil, err
	}
	dir, err := h.lab.tempDir("postgres")
	if err != nil {
		return nil, err
	}
	// It is another user who has to get there.
	err = errors.Join(os.Chmod(filepath.Dir(dir), 0o711), os.Chown(dir, int(as.Uid), int(as.Gid)))
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	initdb := h.Command(ctx, filepath.Join(bin, "initdb"), "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale", "C")
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	initdb.Dir = dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("making a PostgreSQL cluster on host %s: %w: %s", h.Name, err, out)
	}
	hba := "local all all trust\nhost all all all trust\n"
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(hba), 0o600); err != nil {
		return nil, err
	}
	args := []string{"-D", data, "-p", strconv.Itoa(port), "-k", dir}
	for _, s := range []string{
		"listen_addresses=*", "max_connections=" + strconv.Itoa(connections), "fsync=off", "shared_buffers=16MB", "autovacuum=off",
	} {
		args = append(args, "-c", s)
	}
	d, err := h.startDaemonAs(ctx, as, h.Cgroup, port, filepath.Join(bin, "postgres"), args...)
	if err != nil {
		return nil, err
	}
	return &Postgres{Daemon: d, Socket: dir, Programs: bin}, nil
}

// postgresPrograms is where the newest server's programs are: Debian has them
// in no PATH.
func postgresPrograms() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return "", errors.New("PostgreSQL is not installed: apt-get install postgresql")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1]), nil
}

func userPostgres() (*syscall.Credential, error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}
