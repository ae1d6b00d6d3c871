package metrics

import (
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"headgate/pkg/status"
)

// Family documents one metric.
type Family struct {
	Name   string
	Type   string   // gauge, counter or histogram
	Labels []string // in order
	Help   string
}

// family is a metric, and how its value is read. Exactly one of the functions
// is set.
type family struct {
	name  string
	kind  prometheus.ValueType
	label string // beside those of a target; empty for none
	help  string

	ofAgent          func(*Snapshot, func(v float64, label string))
	ofTarget         func(*status.Target, *Detail, func(v float64, label string))
	histogram        func(*Detail) *Histogram
	histogramOfAgent func(*Snapshot) *Histogram
}

// targetLabels are the labels of everything that belongs to a target.
var targetLabels = []string{"rule", "scope", "port", "unit"}

func (f *family) labels() []string {
	var l []string
	if f.ofAgent == nil && f.histogramOfAgent == nil {
		l = append(l, targetLabels...)
	}
	if f.label != "" {
		l = append(l, f.label)
	}
	return l
}

// Reference returns what the Collector collects.
func Reference() []Family {
	var all []Family
	for _, f := range families {
		kind := map[prometheus.ValueType]string{
			prometheus.GaugeValue: "gauge", prometheus.CounterValue: "counter",
		}[f.kind]
		if f.histogram != nil || f.histogramOfAgent != nil {
			kind = "histogram"
		}
		all = append(all, Family{Name: f.name, Type: kind, Labels: f.labels(), Help: f.help})
	}
	return append(all, Family{buildInfo, "gauge", buildLabels, buildHelp})
}

const (
	buildInfo = "headgate_build_info"
	buildHelp = "1, with the version of the agent and of the Go it was built with."
)

var buildLabels = []string{"version", "goversion"}

// Collector reports a Source to Prometheus.
type Collector struct {
	source Source
	descs  []*prometheus.Desc // of families
	build  *prometheus.Desc
}

// NewCollector returns the Collector of a Source.
func NewCollector(s Source) *Collector {
	c := &Collector{source: s, build: prometheus.NewDesc(buildInfo, buildHelp, buildLabels, nil)}
	for _, f := range families {
		c.descs = append(c.descs, prometheus.NewDesc(f.name, f.help, f.labels(), nil))
	}
	return c
}

// NewRegistry returns a registry with the Collector of a Source and what
// Prometheus' library tells of any Go process.
func NewRegistry(s Source) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		NewCollector(s),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return r
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
	ch <- c.build
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.source.Snapshot()
	for i := range families {
		f, desc := &families[i], c.descs[i]
		if f.ofAgent != nil {
			f.ofAgent(&s, func(v float64, label string) {
				ch <- c.constant(desc, f, v, nil, label)
			})
			continue
		}
		if f.histogramOfAgent != nil {
			emitHistogram(ch, desc, f.histogramOfAgent(&s))
			continue
		}
		for j := range s.Status.Targets {
			t, d := &s.Status.Targets[j], &Detail{}
			if j < len(s.Details) {
				d = &s.Details[j]
			}
			labels := []string{t.Rule, t.Scope, strconv.Itoa(int(t.Port)), t.Unit}
			if f.histogram == nil {
				f.ofTarget(t, d, func(v float64, label string) {
					ch <- c.constant(desc, f, v, labels, label)
				})
			} else {
				emitHistogram(ch, desc, f.histogram(d), labels...)
			}
		}
	}
	ch <- valid(c.build, func() (prometheus.Metric, error) {
		return prometheus.NewConstMetric(c.build, prometheus.GaugeValue, 1, s.Status.Version, runtime.Version())
	})
}

// emitHistogram leaves out what is not measured.
func emitHistogram(ch chan<- prometheus.Metric, desc *prometheus.Desc, h *Histogram, labels ...string) {
	if h != nil {
		ch <- valid(desc, func() (prometheus.Metric, error) { return h.metric(desc, labels...) })
	}
}

// constant makes a metric of one value.
func (c *Collector) constant(desc *prometheus.Desc, f *family, v float64, labels []string, label string) prometheus.Metric {
	if f.label != "" {
		labels = append(labels[:len(labels):len(labels)], label)
	}
	return valid(desc, func() (prometheus.Metric, error) {
		return prometheus.NewConstMetric(desc, f.kind, v, labels...)
	})
}

// valid turns an error, such as a label that is not UTF-8, into one of the
// scrape.
func valid(desc *prometheus.Desc, build func() (prometheus.Metric, error)) prometheus.Metric {
	m, err := build()
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}
