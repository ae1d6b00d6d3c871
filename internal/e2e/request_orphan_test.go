package e2e

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"headgate/internal/lab"
)

const idleRule = `
window: 50ms
rules:
  - name: shop
    port: 8080
    unit: request
    end: {idle: 300ms}
    limit: {algorithm: fixed, initial: 5}
    hold: {max_wait: 1s}
`

// Five requests are answered, and nothing more is said. The agent that was told
// of it dies; the next one ends them nevertheless.
func TestIdleEndsAfterRestart(t *testing.T) {
	const limit = 5
	lab.ForTest(t, "any") // skips without root
	program := buildAgent(t)
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	p := runAgent(t, program, srv, idleRule)
	var conns []net.Conn
	for range limit {
		conns = append(conns, dial(t, cli, to))
	}
	k.await(t, limit)
	for _, c := range conns {
		if _, err := io.WriteString(c, "ask"); err != nil {
			t.Fatal(err)
		}
	}
	awaitUnits(t, limit, 0)
	p.signal(t, syscall.SIGSTOP) // it is told, and does nothing any more
	for _, c := range k.conns {
		if _, err := io.WriteString(c, "answer"); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond)
	awaitUnits(t, limit, 0)
	p.signal(t, syscall.SIGKILL)
	_ = p.cmd.Wait()
	time.Sleep(100 * time.Millisecond)
	if n, _ := kernelUnits(t); n != limit {
		t.Fatalf("%d in flight without an agent, want %d: that tests nothing", n, limit)
	}
	runAgent(t, program, srv, idleRule)
	awaitUnits(t, 0, 0)
}

// A request waits when its agent dies, and its client is not heard of again.
func TestHeldRequestOfSilentClient(t *testing.T) {
	lab.ForTest(t, "any") // skips without root
	program := buildAgent(t)
	for name, rule := range map[string]string{"plain": idleRule, "sources": idleRule + "    per_source: {limit: 100}\n"} {
		t.Run(name, func(t *testing.T) { heldRequestOfSilentClient(t, program, rule) })
	}
}

func heldRequestOfSilentClient(t *testing.T, program, rule string) {
	t.Helper()
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	p := runAgent(t, program, srv, rule)
	var conns []net.Conn
	for range 6 {
		conns = append(conns, dial(t, cli, to))
	}
	k.await(t, 6)
	for _, c := range conns {
		if _, err := io.WriteString(c, "ask"); err != nil {
			t.Fatal(err)
		}
	}
	awaitUnits(t, 5, 1)
	p.signal(t, syscall.SIGSTOP)
	err := cli.Do(func() error {
		l, err := netlink.LinkByName("srv")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(l)
	})
	if err != nil {
		t.Fatal(err)
	}
	p.signal(t, syscall.SIGKILL)
	_ = p.cmd.Wait()
	runAgent(t, program, srv, rule)
	awaitUnits(t, 5, 0)
}
