package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"headgate/internal/lab"
)

// pgbench runs a script with many clients against the protected port, each
// client's transactions times or for seconds, and returns transactions a second.
func pgbench(t *testing.T, pg *lab.Postgres, cli *lab.Host, host, protocol, script string, args ...string) float64 {
	t.Helper()
	file := filepath.Join(t.TempDir(), "script.sql")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	args = append(append([]string{"-n", "-h", host, "-p", strconv.Itoa(port), "-U", "postgres", "-M", protocol, "-f", file}, args...), "postgres")
	out, err := cli.Command(t.Context(), filepath.Join(pg.Programs, "pgbench"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("pgbench: %v: %s", err, out)
	}
	m := regexp.MustCompile(`tps = ([0-9.]+)`).FindSubmatch(out)
	if m == nil || strings.Contains(string(out), "aborted") {
		t.Fatalf("pgbench: %s", out)
	}
	tps, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return tps
}

// watchActive looks 200 times a second, until stop, at how many sessions the
// server works for, and returns the most that there were.
func watchActive(t *testing.T, pg *lab.Postgres, srv *lab.Host) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	const watch = `select 'active=' || count(*) from pg_stat_activity where state = 'active' and query like '%pg_sleep%' and pid <> pg_backend_pid() \watch 0.005`
	cmd := srv.Command(ctx, filepath.Join(pg.Programs, "psql"), "-h", pg.Socket, "-p", strconv.Itoa(port), "-U", "postgres", "-At")
	cmd.Stdin = strings.NewReader(watch)
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := cmd.Output()
		done <- result{out, err}
	}()
	return func() int {
		t.Helper()
		cancel()
		r := <-done
		most, looks := 0, 0
		for f := range strings.FieldsSeq(string(r.out)) {
			if n, err := strconv.Atoi(strings.TrimPrefix(f, "active=")); err == nil && strings.HasPrefix(f, "a") {
				most, looks = max(most, n), looks+1
			}
		}
		if looks < 50 {
			t.Fatalf("looked at the sessions %d times: %v: %s", looks, r.err, r.out)
		}
		return most
	}
}

func TestRequestLimitOfPostgres(t *testing.T) {
	srv, cli, to := hosts(t)
	pg, err := srv.StartPostgres(t.Context(), port, 100)
	if err != nil {
		t.Fatal(err)
	}
	const sleep = "select pg_sleep(0.02);\n"
	alone := pgbench(t, pg, cli, to.Addr().String(), "simple", sleep, "-c", "10", "-T", "1")
	t.Logf("10 clients alone: %.1f/s", alone)
	ag := startHolding(t, srv, requests(10))
	for _, protocol := range []string{"simple", "extended", "prepared"} {
		t.Run(protocol, func(t *testing.T) {
			before := target(ag)
			const clients, each = 50, 10
			active, peak := watchActive(t, pg, srv), watchPeak(t)
			tps := pgbench(t, pg, cli, to.Addr().String(), protocol, sleep, "-c", fmt.Sprint(clients), "-t", fmt.Sprint(each))
			most, counted := active(), peak()
			t.Logf("%d clients: %.1f/s, %d active, %d counted", clients, tps, most, counted)
			if most > 10 || counted != 10 {
				t.Errorf("%d active sessions and %d in flight, want 10", most, counted)
			}
			if tps < 0.9*alone {
				t.Errorf("%.2f of what ten get, want 0.9", tps/alone)
			}
			empty(t, ag)
			// Prepared once a session, which is a request too.
			want := uint64(clients * each)
			if protocol == "prepared" {
				want += clients
			}
			await(t, "each is counted once", func() (any, bool) {
				st := target(ag)
				got := st.AdmittedTotal - before.AdmittedTotal
				return got, got == want && st.FinishedTotal == st.AdmittedTotal
			})
		})
	}
}
