package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"slices"

	"headgate/pkg/controller"
	"headgate/pkg/sim"
)

// Score is how an algorithm did in a scenario, averaged over seeds.
type Score struct {
	Name     string
	Best     int     // the best constant limit, known afterwards
	Ratio    float64 // goodput over that of Best
	P99      float64 // in service times
	Limit    float64 // in force at the end
	Rejected float64 // share of the arrivals
}

// Scorer scores algorithms against the best constant limit, and remembers
// what was the best one.
type Scorer struct {
	Seeds []uint64
	path  string
	Known map[string]static
}

type static struct {
	Limit int
	Good  float64
}

// NewScorer returns a scorer for seeds 1 to n. Searches are kept in the file
// at path, unless it is empty.
func NewScorer(n int, path string) (*Scorer, error) {
	s := &Scorer{path: path, Known: map[string]static{}}
	for i := range n {
		s.Seeds = append(s.Seeds, uint64(i+1))
	}
	if path == "" {
		return s, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &s.Known); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Score runs the scenario once for each seed.
func (s *Scorer) Score(ctx context.Context, sc sim.Scenario, algorithm func() (controller.Algorithm, error)) (Score, error) {
	best, err := s.best(ctx, sc)
	if err != nil {
		return Score{}, err
	}
	score := Score{Name: sc.Name, Best: best.Limit}
	n := float64(len(s.Seeds))
	for _, seed := range s.Seeds {
		a, err := algorithm()
		if err != nil {
			return Score{}, err
		}
		sc.Seed = seed
		r, err := sim.Run(ctx, sc, a, nil)
		if err != nil {
			return Score{}, err
		}
		score.Ratio += float64(r.Good) / max(best.Good, 1) / n
		score.P99 += r.P99Service / n
		score.Rejected += float64(r.Rejected) / float64(max(r.Offered, 1)) / n
		score.Limit += float64(r.Series[len(r.Series)-1].Refusing) / n
	}
	return score, nil
}

func (s *Scorer) best(ctx context.Context, sc sim.Scenario) (static, error) {
	text, err := json.Marshal(struct {
		sim.Scenario
		Seeds []uint64
	}{sc, s.Seeds})
	if err != nil {
		return static{}, err
	}
	h := fnv.New64a()
	h.Write(text)
	key := fmt.Sprintf("%s %x", sc.Name, h.Sum64())
	if b, ok := s.Known[key]; ok {
		return b, nil
	}
	limit, good, err := sim.BestStatic(ctx, sc, s.Seeds)
	if err != nil {
		return static{}, err
	}
	s.Known[key] = static{limit, good}
	if s.path == "" {
		return s.Known[key], nil
	}
	data, err := json.MarshalIndent(s.Known, "", " ")
	if err != nil {
		return static{}, err
	}
	return s.Known[key], os.WriteFile(s.path, data, 0o644)
}

// Summary is the scores of a set in four numbers.
type Summary struct {
	Mean, P10 float64 // of Ratio
	Good      int     // scenarios with a Ratio of 0.95 or more
	P99       float64 // the median
}

// Summarise works out the summary of scores.
func Summarise(scores []Score) Summary {
	var s Summary
	var ratios, p99s []float64
	for _, x := range scores {
		ratios, p99s = append(ratios, x.Ratio), append(p99s, x.P99)
		s.Mean += x.Ratio / float64(len(scores))
		if x.Ratio >= 0.95 {
			s.Good++
		}
	}
	s.P10, s.P99 = quantile(ratios, 0.1), quantile(p99s, 0.5)
	return s
}

// quantile interpolates between the values beside the q-quantile.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	at := q * float64(len(v)-1)
	i := min(int(at), len(v)-1)
	j := min(i+1, len(v)-1)
	return v[i] + (at-float64(i))*(v[j]-v[i])
}
