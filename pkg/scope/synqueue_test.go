package scope

import "testing"

func TestStrangers(t *testing.T) {
	for _, c := range []struct {
		q       SYNQueue
		backlog int
		want    int
	}{
		{SYNQueue{Cookies: true, Most: 2048, Retries: 5}, 4096, 0},
		{SYNQueue{Most: 2048, Retries: 5}, 4096, 12}, // 1536 / 2 in 63 s
		{SYNQueue{Most: 2048, Retries: 2}, 4096, 109},
		{SYNQueue{Most: 2048, Retries: 5}, 511, 4},
		{SYNQueue{Most: 128, Retries: 5}, 5, 1},
		{SYNQueue{Most: 128, Retries: 0}, 4096, 48},
		{SYNQueue{Most: 1 << 20, Retries: 255}, 4096, 1},
	} {
		if got := c.q.Strangers(c.backlog); got != c.want {
			t.Errorf("%+v, backlog %d: %d, want %d", c.q, c.backlog, got, c.want)
		}
	}
}

func TestReadSYNQueue(t *testing.T) {
	q, err := ReadSYNQueue()
	if err != nil || q.Most <= 0 || q.Retries < 0 {
		t.Errorf("%+v, %v", q, err)
	}
}
