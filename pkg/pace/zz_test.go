package pace

import (
	"encoding/binary"
	"log/slog"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"headgate/pkg/netfilter"
)

func (r *rig) flood(n int, pause time.Duration) {
	var fd int
	r.client.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	defer unix.Close(fd)
	for i := range n {
		b := ip4(0, 0x4000, segment(2, 0))
		copy(b[12:], r.client.Addr4.AsSlice())
		b[12+2] = 1; b[15] = 2
		copy(b[16:], r.server.Addr4.AsSlice())
		b[8] = 64
		binary.BigEndian.PutUint16(b[2:], 44)
		tcp := b[20:]
		binary.BigEndian.PutUint16(tcp, uint16(1024+i%60000))
		binary.BigEndian.PutUint32(tcp[4:], uint32(i))
		sum := onesSum(onesSum(6+24, b[12:20]), tcp)
		binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
		unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: r.server.Addr4.As4()})
		if pause > 0 && i%10 == 0 { time.Sleep(pause) }
	}
}

func TestZZCapacity(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(0), Policy{MaxWaiting: 100000, MaxWait: 3*time.Second})
	r.listen("tcp4", nil)
	r.holder.mu.Lock()
	b := time.Now()
	r.flood(50000, 0)
	t.Log("sent in", time.Since(b))
	q, err := netfilter.Queues(r.ns)
	t.Log(q, err)
	r.holder.mu.Unlock()
	b = time.Now()
	r.await("read", func() bool { return int(r.holder.Stats().Packets) >= q[testNFQ].Held })
	t.Log("read in", time.Since(b))
	time.Sleep(3500*time.Millisecond)
	t.Logf("%+v", r.holder.TargetStats(1).QueueCounts)
	q, err = netfilter.Queues(r.ns)
	t.Log(q, err)
}

func TestZZOpen(t *testing.T) {
	r := newRig(t, markSYNs, newFakeGate(0), Policy{MaxWaiting: 10, MaxWait: time.Second})
	r.listen("tcp4", nil)
	r.holder.Close()
	done := make(chan bool)
	go func() { r.flood(30000, 100*time.Microsecond); close(done) }()
	ok, bad := 0, 0
	for i := 0; ; i++ {
		select { case <-done: t.Log(ok, bad); return; default: }
		h, err := OpenHolder(HolderOptions{Netns: r.ns, Queue: testNFQ, Mark: testMark, Gate: r.gate, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil { bad++; t.Log(err); continue }
		ok++
		h.Close()
	}
}
