package lab

import (
	"context"
	"path/filepath"
	"strconv"
)

// StartMariaDB starts MariaDB with a data directory that goes with the lab, in
// the host's namespace and cgroup, on all addresses, and returns when it
// listens. It asks nobody who he is, and nothing is ever written through to the
// disk.
func (h *Host) StartMariaDB(ctx context.Context, port, connections int) (*Daemon, error) {
	path, err := program("mariadbd", "mariadb-server-core")
	if err != nil {
		return nil, err
	}
	dir, err := h.lab.tempDir("mariadb")
	if err != nil {
		return nil, err
	}
	return h.startDaemon(ctx, h.Cgroup, port, path,
		"--no-defaults", "--user=root", "--datadir="+dir, "--socket="+filepath.Join(dir, "socket"),
		"--port="+strconv.Itoa(port), "--bind-address=*", "--max-connections="+strconv.Itoa(connections),
		"--skip-grant-tables", "--skip-networking=0", "--skip-name-resolve", "--skip-log-bin",
		"--innodb-buffer-pool-size=8M", "--innodb-log-file-size=4M",
		"--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0")
}
