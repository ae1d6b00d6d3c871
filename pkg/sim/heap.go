package sim

// heap is a binary heap of values by time, first come first out among equals.
type heap[T any] struct {
	items []item[T]
	seq   uint64
}

type item[T any] struct {
	at    float64
	seq   uint64
	value T
}

func (a item[T]) before(b item[T]) bool {
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (h *heap[T]) len() int { return len(h.items) }

// first returns the least time; there must be one.
func (h *heap[T]) first() float64 { return h.items[0].at }

func (h *heap[T]) push(at float64, value T) {
	h.seq++
	it := item[T]{at, h.seq, value}
	h.items = append(h.items, it)
	i := len(h.items) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !it.before(h.items[up]) {
			break
		}
		h.items[i] = h.items[up]
		i = up
	}
	h.items[i] = it
}

func (h *heap[T]) pop() (float64, T) {
	top := h.items[0]
	n := len(h.items) - 1
	it := h.items[n]
	h.items[n] = item[T]{}
	h.items = h.items[:n]
	i := 0
	for {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && h.items[down+1].before(h.items[down]) {
			down++
		}
		if !h.items[down].before(it) {
			break
		}
		h.items[i] = h.items[down]
		i = down
	}
	if n > 0 {
		h.items[i] = it
	}
	return top.at, top.value
}

// fifo is a queue that takes at one end and gives at both.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(v T) { q.items = append(q.items, v) }

func (q *fifo[T]) shift() T {
	v := q.items[q.head]
	var zero T
	q.items[q.head] = zero
	q.head++
	if q.head > 64 && q.head > len(q.items)/2 {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	return v
}

func (q *fifo[T]) pop() T {
	n := len(q.items) - 1
	v := q.items[n]
	var zero T
	q.items[n] = zero
	q.items = q.items[:n]
	return v
}
