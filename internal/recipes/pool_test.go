package recipes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"headgate/internal/lab/load"
)

// pooled is PostgreSQL behind pools of connections, more than it works for well.
var pooled = recipe{
	example: "postgresql-pool.yaml", start: startPostgres, login: []load.Turn{load.PostgresLogin()},
	ask: changeHotRow, health: load.PostgresQuery("SELECT 1"),
}

// With the recipe as much gets done, nobody is turned away, and the server has no
// more in hand than the limit, by its own count. But who waits for a slot may
// have a lock that those with a slot wait for.
func TestPool(t *testing.T) {
	cfg, s := pooled.site(t)
	alone := s.alone(t)
	pool := make([]*load.Session, 90)
	for i := range pool {
		pool[i] = s.connect(t)
	}
	open, openActive := s.closed(t, pool)
	startAgent(t, cfg)
	limit := *cfg.Rules[0].Limit.Params.Initial
	for round := 1; ; round++ {
		gated, active := s.closed(t, pool)
		t.Logf("%d connections: %.0f/s, without %.0f/s; %d active, without %d", len(pool), gated, open, active, openActive)
		if active != limit || openActive < 5*limit {
			t.Errorf("%d sessions active, the limit is %d; without %d", active, limit, openActive)
		}
		if gated >= 0.9*open {
			break
		}
		if round == rounds {
			t.Fatalf("%.2f of what gets done without, want 0.9", gated/open)
		}
	}

	// The holder of a row has no request under way when others take all the slots
	// to wait for the row.
	holdUp := func(pool []*load.Session, lockTimeout string) (took time.Duration, commit error) {
		holder := s.connect(t)
		if err := holder.Say(command("BEGIN", 'T'), command("UPDATE hot SET n = n + 1", 'T')); err != nil {
			t.Fatal(err)
		}
		var others sync.WaitGroup
		defer others.Wait()
		for _, c := range pool {
			if err := c.Say(command("SET lock_timeout = '"+lockTimeout+"'", 'I')); err != nil {
				t.Fatal(err)
			}
			others.Go(func() { _ = c.Say(s.ask) })
		}
		time.Sleep(50 * time.Millisecond)
		begin := time.Now()
		commit = holder.Say(command("COMMIT", 'I'))
		return time.Since(begin), commit
	}
	wait := cfg.Rules[0].Hold.MaxWait
	if took, err := holdUp(pool[:limit], "200ms"); err != nil || took > wait {
		t.Errorf("a commit while others wait for its locks, for 200 ms at most: %v after %v", err, took)
	} else {
		t.Logf("with a lock_timeout of 200 ms a commit waits for %v, %.1f times one alone", took, took.Seconds()/alone.Seconds())
	}
	if took, err := holdUp(pool[limit:2*limit], "0"); !errors.Is(err, syscall.ECONNRESET) || took < wait {
		t.Errorf("a commit while others wait for its locks without end: %v after %v; the recipe says that it is refused after %v", err, took, wait)
	}
}

func (s *site) connect(t *testing.T) *load.Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := s.begin(ctx, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

// closed has all clients of a pool ask again as soon as they have an answer, and
// returns how many answers there were a second, and how many of their sessions
// were active at once, by the server's own count.
func (s *site) closed(t *testing.T, pool []*load.Session) (rate float64, active int) {
	t.Helper()
	const d = 600 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var count atomic.Int64
	var all sync.WaitGroup
	for _, c := range pool {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := c.Say(s.ask); err != nil {
					t.Error(err)
					return
				}
				if ctx.Err() == nil {
					count.Add(1)
				}
			}
		})
	}
	// What it asks last may be answered after the end.
	observer, err := s.begin(t.Context(), checker.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer observer.Close()
	_ = observer.SetDeadline(time.Now().Add(10 * time.Second))
	for ctx.Err() == nil {
		n, err := number(observer, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND client_addr <> '%s'", checker.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		active = max(active, n)
		time.Sleep(5 * time.Millisecond)
	}
	all.Wait()
	return float64(count.Load()) / d.Seconds(), active
}

// command is a statement that returns no rows, in a session that is in a
// transaction (T) or not (I) afterwards.
func command(text string, state byte) load.Turn {
	return load.Turn{Send: load.PostgresQuery(text).Send, Begin: "C", End: "Z\x00\x00\x00\x05" + string(state)}
}

// number asks PostgreSQL for one number.
func number(c *load.Session, query string) (int, error) {
	if err := c.Say(load.PostgresQuery(query)); err != nil {
		return 0, err
	}
	// Messages: a type, a length that counts itself, and what they say. Of a
	// DataRow that is the number of columns, and a length before each.
	for m := c.Answer(); len(m) >= 5; {
		length := int(binary.BigEndian.Uint32(m[1:])) + 1
		if length > len(m) {
			break
		}
		if m[0] == 'D' && length > 11 {
			return strconv.Atoi(string(m[11:length]))
		}
		m = m[length:]
	}
	return 0, fmt.Errorf("no row in the answer %q", c.Answer())
}
