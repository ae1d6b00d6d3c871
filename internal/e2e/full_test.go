package e2e

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// fill fills a map of handshakes, or of SYNs that wait, with those of a target
// that there is not, and returns how to empty it.
func fill(t *testing.T, name string) (empty func()) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(stateDir(), "live", "maps", name), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	n := int(m.MaxEntries())
	keys := make([][40]byte, n)
	values := make([]byte, n*int(m.ValueSize()))
	for i := range keys {
		// struct pending_key: addresses, then the target. Both values begin with
		// the time until when they hold.
		binary.NativeEndian.PutUint32(keys[i][:], uint32(i))
		binary.NativeEndian.PutUint32(keys[i][32:], 63)
		// Since when and until when, or until when and its pace slot: never over.
		binary.NativeEndian.PutUint64(values[i*int(m.ValueSize()):], 1<<62)
		binary.NativeEndian.PutUint64(values[i*int(m.ValueSize())+8:], 1<<62)
	}
	if int(m.KeySize()) != len(keys[0]) {
		t.Fatalf("keys of %d bytes", m.KeySize())
	}
	for i := range keys {
		v := values[i*int(m.ValueSize()) : (i+1)*int(m.ValueSize())]
		if err := m.Put(keys[i], v); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
	return func() {
		if _, err := m.BatchDelete(keys, nil); err != nil {
			t.Error(err)
		}
	}
}

// Where there is no room for reservations, connections are let in and counted
// when they are established; the limit holds for who comes one after the other.
func TestNoRoomForReservations(t *testing.T) {
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	a := protect(t, srv, 3)
	empty := fill(t, "pendings")
	for n := 1; n <= 3; n++ {
		dial(t, cli, to)
		awaitInFlight(t, a, n)
	}
	if !knock(t, cli, to) {
		t.Error("admitted over the limit")
	}
	await(t, "it is counted", func() (any, bool) {
		n := a.Snapshot().MapFull["pendings"]
		return n, n == 3
	})
	if got := recount(t, a); got.InFlight != 0 || got.Pending != 0 {
		t.Errorf("corrected, with nothing wrong: %+v", got)
	}
	empty()
	k.close(1)
	awaitInFlight(t, a, 2)
	dial(t, cli, to)
	awaitInFlight(t, a, 3)
	if n := a.Snapshot().MapFull["pendings"]; n != 3 {
		t.Errorf("%d without room, want 3 as before", n)
	}
	exact(t, srv)
}

// Where there is no room to hold one more, who is over the limit is refused.
func TestNoRoomToHold(t *testing.T) {
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	a := startHolding(t, srv, holding(2, time.Minute))
	for range 2 {
		dial(t, cli, to)
	}
	k.await(t, 2)
	empty := fill(t, "holds")
	if !knock(t, cli, to) {
		t.Error("admitted over the limit")
	}
	await(t, "it is counted", func() (any, bool) {
		n := a.Snapshot().MapFull["holds"]
		return n, n == 1
	})
	awaitUnits(t, 2, 0)
	empty()
	c := newCrowd(t, cli, to, 1)
	awaitUnits(t, 2, 1)
	k.closeAll()
	c.wait(t, patience)
	c.close()
	k.empty(t, a)
}

// Where the kernel gives a socket no memory for its record the connection is
// let in uncounted. With memory again, a recount counts it.
func TestNoMemoryForARecord(t *testing.T) {
	srv, cli, to := hosts(t)
	k := keep(t, srv, "tcp", ":8080")
	a := protect(t, srv, 10)
	memory := func(bytes string) {
		t.Helper()
		err := srv.Do(func() error { return os.WriteFile("/proc/sys/net/core/optmem_max", []byte(bytes), 0) })
		if errors.Is(err, os.ErrNotExist) {
			t.Skip("optmem_max is the host's on this kernel, and not a network namespace's")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	dial(t, cli, to)
	awaitInFlight(t, a, 1)
	memory("64")
	for range 2 {
		dial(t, cli, to)
	}
	k.await(t, 3)
	await(t, "it is counted", func() (any, bool) {
		n := a.Snapshot().MapFull["conns"]
		return n, n == 2 && inKernel(t) == 1
	})
	memory("131072")
	if got := recount(t, a); got.InFlight != -2 {
		t.Errorf("corrected %+v, want 2 more in flight", got)
	}
	exact(t, srv)
	k.empty(t, a)
}
