package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"headgate/internal/lab"
)

// soakEnv says how many connections [TestSoakConnections] makes, soakSeed what
// its chances are drawn from.
const (
	soakEnv  = "HEADGATE_SOAK_CONNECTIONS"
	seedEnv  = "HEADGATE_SOAK_SEED"
	soakTurn = 50_000 // connections from one check point to the next
)

// What each turn has besides churn.
const (
	halfOpen = 100 // SYNs that nobody follows up
	killed   = 40  // connections of a client process that is killed
	vanished = 20  // connections whose client loses its network
)

// seedOf is what a test draws from: what [seedEnv] says, or the time.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
	}
	t.Logf("%s=%d", seedEnv, seed)
	return seed
}

// Connections of all kinds of ends, as many as one likes: at each check point the
// count is the kernel's own, and what the agent has recounted differed by nothing.
func TestSoakConnections(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv(soakEnv))
	if err != nil {
		t.Skipf("a long one: runs with %s=NUMBER, as by make soak-connections", soakEnv)
	}
	l := lab.ForTest(t, "srv", "cli", "gone")
	srv, cli, gone := l.Host("srv"), l.Host("cli"), l.Host("gone")
	addrs := churnAddrs(t, srv)
	seed := seedOf(t)
	cfg := configFor(srv, port, fixed(10_000))
	cfg.Window = 20 * time.Millisecond
	a := start(t, cfg)
	neverDrifts(t, a)
	s := startChurnServer(t, srv)
	begin, made := time.Now(), 0
	for turn := 0; made < n && !t.Failed(); turn++ {
		var group sync.WaitGroup
		left := make([][]*net.TCPConn, churnWorkers)
		for w := range churnWorkers {
			group.Go(func() {
				r := rand.New(rand.NewPCG(seed+uint64(turn), uint64(w)))
				err := cli.Do(func() (err error) {
					left[w], err = churn(r, addrs[w], soakTurn/churnWorkers)
					return err
				})
				if err != nil {
					t.Errorf("turn %d, worker %d: %v", turn, w, err)
				}
			})
		}
		group.Go(func() { killClient(t, cli, addrs[turn%churnWorkers]) })
		group.Go(func() { loseClients(t, gone, netip.AddrPortFrom(netip.MustParseAddr("10.83.2.1"), port)) })
		group.Go(func() { openHalf(t, cli, addrs[0], turn) })
		group.Wait()
		made += soakTurn/churnWorkers*churnWorkers + killed + vanished

		awaitFor(t, 4*patience, "the count is the kernel's own", func() (any, bool) {
			st, real := target(a), connections(t, srv, port)
			return []any{real, st}, st.InFlight == churnWorkers*kept && st.Pending == 0 &&
				real == churnWorkers*(kept-keptReset) && int(st.AdmittedTotal-st.FinishedTotal) == churnWorkers*kept
		})
		recounted := recount(t, a)
		if recounted.InFlight != 0 || recounted.Waiting != 0 || recounted.Pending != 0 {
			t.Errorf("drift: %+v", recounted)
		}
		for _, conns := range left {
			for _, c := range conns {
				c.Close()
			}
		}
		s.release()
		fmt.Printf("%d connections after %v, %.0f a second; drift 0\n", made, time.Since(begin).Round(time.Second),
			float64(made)/time.Since(begin).Seconds())
	}
	s.release()
	awaitInFlight(t, a, 0)
	st := target(a)
	if int(st.AdmittedTotal) != made || st.FinishedTotal != st.AdmittedTotal || st.RejectedTotal.Limit != 0 {
		t.Errorf("%d connections were made; %+v", made, st)
	}
}

// killClient has a process make connections, and kills it.
func killClient(t *testing.T, from *lab.Host, to netip.AddrPort) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd := from.Command(ctx, "/proc/self/exe", clientVerb, to.String(), strconv.Itoa(killed))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Errorf("a client process: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// clientVerb is the first argument of a process that is a client: of an address,
// with so many connections, which it keeps.
const clientVerb = "e2e-client"

func clientMain(args []string) (handled bool, code int) {
	if len(args) != 3 || args[0] != clientVerb {
		return false, 0
	}
	n, err := strconv.Atoi(args[2])
	var conns []net.Conn
	for i := 0; err == nil && i < n; i++ {
		var c net.Conn
		if c, err = net.Dial("tcp", args[1]); err == nil {
			conns = append(conns, c)
			err = exchange(c.(*net.TCPConn), clientCloses)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return true, 1
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
	return true, len(conns)
}

// loseClients makes connections, half of which say something, and takes the
// network away from under them. The server's keepalive ends them.
func loseClients(t *testing.T, from *lab.Host, to netip.AddrPort) {
	var conns []*net.TCPConn
	err := from.Do(func() error {
		for range vanished {
			c, err := net.Dial("tcp", to.String())
			if err != nil {
				return err
			}
			conns = append(conns, c.(*net.TCPConn))
			if err := exchange(c.(*net.TCPConn), clientVanishes); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
		return
	}
	if err := from.SetLink("srv", false); err != nil {
		t.Error(err)
	}
	time.Sleep(4 * time.Second)
	for _, c := range conns { // while nothing of it reaches the server
		_ = closeByReset(c)
	}
	if err := from.SetLink("srv", true); err != nil {
		t.Error(err)
	}
}

// openHalf sends SYNs of clients that are not there.
func openHalf(t *testing.T, from *lab.Host, to netip.AddrPort, turn int) {
	for i := range halfOpen {
		err := from.SendSegment(lab.Segment{
			Src: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, byte(turn), byte(i)}), 1000),
			Dst: to, Flags: lab.SYN, Seq: uint32(i),
		})
		if err != nil {
			t.Error(err)
			return
		}
	}
}
