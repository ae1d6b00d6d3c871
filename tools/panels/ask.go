package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot/plotter"
)

// series is one line, in parts where it has gaps.
type series struct {
	name   string
	dashed bool
	points plotter.XYs
}

// variables of the dashboard, as they are when nothing is chosen.
var variables = strings.NewReplacer("$__rate_interval", "15s", "$job", ".*", "$instance", ".*", "$rule", ".*", "$port", ".*")

var label = regexp.MustCompile(`{{\s*(\w+)\s*}}`)

// ask returns what the queries of a panel say.
func ask(server string, p *panel, from, to time.Time) ([]series, error) {
	var all []series
	for _, q := range p.Targets {
		args := url.Values{
			"query": {variables.Replace(q.Expr)},
			"start": {strconv.FormatInt(from.Unix(), 10)},
			"end":   {strconv.FormatInt(to.Unix(), 10)},
			"step":  {"2"},
		}
		resp, err := http.Get(server + "/api/v1/query_range?" + args.Encode())
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		var answer struct {
			Error string
			Data  struct {
				Result []struct {
					Metric map[string]string
					Values [][2]any
				}
			}
		}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			return nil, fmt.Errorf("%s: %w", q.Expr, err)
		}
		if answer.Error != "" {
			return nil, errors.New(answer.Error)
		}
		for _, r := range answer.Data.Result {
			s := series{dashed: p.dashed(q.RefID)}
			s.name = label.ReplaceAllStringFunc(q.LegendFormat, func(l string) string {
				return r.Metric[label.FindStringSubmatch(l)[1]]
			})
			for _, v := range r.Values {
				at, _ := v[0].(float64)
				text, _ := v[1].(string)
				value, err := strconv.ParseFloat(text, 64)
				if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
					continue
				}
				s.points = append(s.points, plotter.XY{X: at, Y: value})
			}
			if len(s.points) > 0 {
				all = append(all, s)
			}
		}
	}
	return all, nil
}
