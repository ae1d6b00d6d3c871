package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"headgate/internal/lab"
	"headgate/internal/lab/backend"
)

// The server: 16 threads that need 20 ms for a request carry 800 requests a
// second. The more requests are inside beyond that, the more the threads get
// in each other's way.
const (
	workers    = 16
	service    = 20 * time.Millisecond
	contention = 0.03
	capacity   = float64(workers) * float64(time.Second) / float64(service)

	// What is inside at most: connections that the server accepts, and
	// connections that wait in the kernel until it does.
	maxConns = 512
	backlog  = 128

	port        = 8080
	backendPort = 9000 // behind nginx

	// An answer within ten service times is a good one; after two seconds a
	// client gives up.
	within   = 10 * service
	patience = 2 * time.Second
)

// stage is the server and the clients before the play.
type stage struct {
	lab             *lab.Lab
	server, clients *lab.Host
	target          Target
	sources         []netip.Addr // of the clients
}

func newStage(ctx context.Context, server string) (*stage, error) {
	l, err := lab.New("server", "clients")
	if err != nil {
		return nil, err
	}
	s := &stage{lab: l, server: l.Host("server"), clients: l.Host("clients")}
	s.target = Target{NetNS: s.server.NetNS, Port: port, Cgroup: s.server.Cgroup.Path}
	if err := s.setUp(ctx, server); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

func (s *stage) setUp(ctx context.Context, server string) error {
	if err := s.server.Sysctl("net.core.somaxconn", fmt.Sprint(backlog)); err != nil {
		return err
	}
	// One address has 64 thousand ports, and a minute of this load uses more.
	for n := range 16 {
		addr := netip.AddrFrom4([4]byte{10, 83, 1, byte(100 + n)})
		if err := s.clients.AddAddr("server", netip.PrefixFrom(addr, 24)); err != nil {
			return err
		}
		s.sources = append(s.sources, addr)
	}

	spec := backend.Spec{
		Protocol: "http", Listen: []string{fmt.Sprintf(":%d", port)},
		Workers: workers, Service: service, Contention: contention, MaxConns: maxConns,
	}
	if server == "go" {
		_, err := s.server.StartServer(ctx, spec)
		return err
	}
	spec.Listen = []string{fmt.Sprintf("127.0.0.1:%d", backendPort)}
	behind, err := s.server.SubCgroup("backend")
	if err != nil {
		return err
	}
	front, err := s.server.SubCgroup("nginx")
	if err != nil {
		return err
	}
	if _, err := s.server.StartServerIn(ctx, behind, spec); err != nil {
		return err
	}
	s.target.Cgroup = front.Path
	_, err = s.server.StartNginxIn(ctx, front, lab.Nginx{
		Port: port, Upstream: spec.Listen[0],
		// As many as the server behind accepts: one to the client and one to
		// the server for each, and a few for nginx itself.
		Connections: 2*maxConns + 16,
	})
	return err
}
