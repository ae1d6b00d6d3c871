package config

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// maxAncestors bounds the walk up the process tree.
const maxAncestors = 64

// SSHPort returns the server's port of the ssh session that this process was
// started from, 0 for none. sshd names it in SSH_CONNECTION; sudo takes that
// away, so the processes above this one are asked as well, as far as they may
// be read. lookup is [os.LookupEnv].
func SSHPort(lookup func(name string) (string, bool)) uint16 {
	return sshPort(lookup, os.DirFS("/proc"), os.Getppid())
}

func sshPort(lookup func(string) (string, bool), proc fs.FS, parent int) uint16 {
	text, _ := lookup("SSH_CONNECTION")
	for range maxAncestors {
		if port := serverPort(text); port != 0 || parent <= 1 {
			return port
		}
		text = variable(proc, parent, "SSH_CONNECTION")
		parent = parentOf(proc, parent)
	}
	return 0
}

// serverPort reads "client address, client port, server address, server port".
func serverPort(connection string) uint16 {
	f := strings.Fields(connection)
	if len(f) != 4 {
		return 0
	}
	port, err := strconv.ParseUint(f[3], 10, 16)
	if err != nil {
		return 0
	}
	return uint16(port)
}

// variable returns a variable of the environment that a process began with.
func variable(proc fs.FS, pid int, name string) string {
	environ, err := fs.ReadFile(proc, fmt.Sprintf("%d/environ", pid))
	if err != nil {
		return "" // gone, or not ours to read
	}
	for v := range bytes.SplitSeq(environ, []byte{0}) {
		if text, ok := bytes.CutPrefix(v, []byte(name+"=")); ok {
			return string(text)
		}
	}
	return ""
}

// parentOf returns 0 when there is none.
func parentOf(proc fs.FS, pid int) int {
	stat, err := fs.ReadFile(proc, fmt.Sprintf("%d/stat", pid))
	if err != nil {
		return 0
	}
	// pid (name) state parent: the name may hold blanks and parentheses.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(f[1])
	if err != nil {
		return 0
	}
	return parent
}
