package rtt

// groups is the number of groups of a histogram's buckets: one for each power
// of two.
const groups = Buckets / subCount

// Sparse holds a number for each bucket of a histogram, for long: latencies of
// one target lie within a few powers of two, and only those that hold something
// take memory. The zero value holds 0 for every bucket.
type Sparse[N uint32 | uint64] struct {
	group *[groups]*[subCount]N
}

// read returns what a group of buckets holds.
func (s *Sparse[N]) read(g int) (n [subCount]N) {
	if s.group != nil && s.group[g] != nil {
		n = *s.group[g]
	}
	return n
}

// grow returns a group of buckets, to be written.
func (s *Sparse[N]) grow(g int) *[subCount]N {
	if s.group == nil {
		s.group = new([groups]*[subCount]N)
	}
	if s.group[g] == nil {
		s.group[g] = new([subCount]N)
	}
	return s.group[g]
}

// Add adds n to bucket i.
func (s *Sparse[N]) Add(i int, n N) {
	if n != 0 {
		s.grow(i / subCount)[i%subCount] += n
	}
}

// Each calls f for the buckets that hold more than 0, in their order.
func (s *Sparse[N]) Each(f func(i int, n N)) {
	if s.group == nil {
		return
	}
	for g, group := range s.group {
		if group == nil {
			continue
		}
		for i, n := range group {
			if n != 0 {
				f(g*subCount+i, n)
			}
		}
	}
}

// Clone returns a copy that shares no memory with s.
func (s *Sparse[N]) Clone() (c Sparse[N]) {
	s.Each(c.Add)
	return c
}
