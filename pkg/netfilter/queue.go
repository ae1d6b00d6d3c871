package netfilter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"headgate/pkg/scope"
)

// Queue is a queue that somebody reads from, as the kernel sees it.
type Queue struct {
	Held    int    // packets that wait for a verdict
	Dropped uint64 // because the queue was full, of 2^32
	Missed  uint64 // dropped because its reader did not keep up, of 2^32
}

// Queues returns the queues of a namespace that have a reader, by number.
func Queues(ns *scope.Netns) (map[uint16]Queue, error) {
	var queues map[uint16]Queue
	err := ns.Do(func() error {
		f, err := os.Open("/proc/thread-self/net/netfilter/nfnetlink_queue")
		if errors.Is(err, fs.ErrNotExist) {
			return nil // none was ever used
		}
		if err != nil {
			return err
		}
		defer f.Close()
		queues, err = parseQueues(f)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the queues: %w", err)
	}
	return queues, nil
}

// parseQueues reads lines of: number, port of the reader, packets held, copy
// mode, copy range, dropped, dropped on the way to the reader, last packet, 1.
func parseQueues(r io.Reader) (map[uint16]Queue, error) {
	queues := make(map[uint16]Queue)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 {
			return nil, fmt.Errorf("%d fields in %q", len(fields), lines.Text())
		}
		var number [8]uint64
		for i := range number {
			n, err := strconv.ParseUint(fields[i], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("in %q: %w", lines.Text(), err)
			}
			number[i] = n
		}
		queues[uint16(number[0])] = Queue{Held: int(number[2]), Dropped: number[5], Missed: number[6]}
	}
	return queues, lines.Err()
}

// held returns how many packets wait in the queues of the namespace.
func (r Rule) held() (n int, err error) {
	queues, err := Queues(r.Netns)
	for _, q := range queues {
		n += q.Held
	}
	return n, err
}
