package config

import (
	"encoding"
	"math"
	"path"
	"reflect"
	"regexp"
	"time"

	"github.com/goccy/go-yaml/ast"

	"headgate/pkg/controller"
)

// netnsName is what can be the name of a namespace: it is one file name.
var netnsName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,254}$`)

// top returns the keys of a Config with a single value each; a flag or a
// variable may stand in for them.
func (d *decoder) top(c *Config) map[string]func(value) {
	return map[string]func(value){
		"listen":       func(v value) { d.text(v, &c.Listen) },
		"web_config":   func(v value) { d.text(v, &c.WebConfig) },
		"socket":       func(v value) { d.text(v, &c.Socket) },
		"socket_group": func(v value) { d.text(v, &c.SocketGroup) },
		"state":        func(v value) { d.text(v, &c.State) },
		"window":       func(v value) { d.span(v, &c.Window, 10*time.Millisecond, 10*time.Second) },
		"lease":        func(v value) { d.span(v, &c.Lease, time.Second, time.Hour) },
		"mode":         func(v value) { choice(d, v, &c.Mode, ModeEnforce, ModeObserve) },
	}
}

// config reads a whole file. What rules leave out comes from base.
func (d *decoder) config(v value, c *Config, base *Rule) {
	var defaults, rules *value
	keys := d.top(c)
	keys["defaults"] = func(v value) { defaults = &v }
	keys["rules"] = func(v value) { rules = &v }
	d.fields(v, keys)

	if defaults != nil {
		keys := d.rule(base, new(origin))
		for _, own := range []string{"name", "port", "ports", "force"} {
			keys[own] = func(v value) { d.failf(v.at, "belongs to a rule; there is no default for it") }
		}
		d.fields(*defaults, keys)
	}
	if rules != nil {
		d.items(*rules, func(v value) {
			r, o := *base, origin{at: v.at}
			d.fields(v, d.rule(&r, &o))
			c.Rules = append(c.Rules, r)
			d.rules = append(d.rules, o)
		})
	}
}

// rule returns the keys of a Rule.
func (d *decoder) rule(r *Rule, o *origin) map[string]func(value) {
	port := func(v value) {
		if n, ok := d.number(v, 1, math.MaxUint16); ok {
			r.Ports = append(r.Ports, uint16(n))
			o.ports = append(o.ports, v.at)
		}
	}
	return map[string]func(value){
		"name":       func(v value) { d.text(v, &r.Name) },
		"port":       port,
		"ports":      func(v value) { d.items(v, port) },
		"scope":      func(v value) { d.scope(v, &r.Scope) },
		"mode":       func(v value) { choice(d, v, &r.Mode, ModeEnforce, ModeObserve) },
		"unit":       func(v value) { choice(d, v, &r.Unit, UnitConnection, UnitRequest) },
		"end":        func(v value) { d.end(v, &r.End) },
		"signal":     func(v value) { choice(d, v, &r.Signal, SignalService, SignalRTT, SignalConnection, SignalAccept) },
		"limit":      func(v value) { d.limit(v, &r.Limit) },
		"warm_up":    func(v value) { d.warmUp(v, r) },
		"hold":       func(v value) { d.hold(v, &r.Hold) },
		"pace":       func(v value) { d.pace(v, &r.Pace) },
		"reject":     func(v value) { choice(d, v, &r.Reject, RejectReset, RejectDrop) },
		"exempt":     func(v value) { d.networks(v, &r.Exempt) },
		"per_source": func(v value) { d.perSource(v, &r.PerSource) },
		"classes":    func(v value) { d.classes(v, &r.Classes) },
		"force":      func(v value) { d.boolean(v, &r.Force) },
	}
}

func (d *decoder) warmUp(v value, r *Rule) {
	var t time.Duration
	if d.span(v, &t, 0, time.Hour) {
		r.WarmUp = &t
	}
}

func (d *decoder) netns(v value, s *Scope) {
	name, ok := d.scalar(v, "a name or a path")
	switch {
	case !ok:
	case len(name) > 0 && name[0] == '/':
		s.Netns = path.Clean(name)
		if dir := path.Dir(s.Netns); dir == "/run/netns" || dir == "/var/run/netns" {
			s.Netns = path.Base(s.Netns) // the same namespace, so the same scope
		}
	case netnsName.MatchString(name):
		s.Netns = name
	default:
		d.failf(v.at, "%s is neither the name of a network namespace nor an absolute path", quote(name))
	}
}

// limit reads the algorithm first: another one than the defaults' keeps their
// bounds and none of their other settings.
func (d *decoder) limit(v value, l *Limit) {
	if m, ok := v.node.(*ast.MappingNode); ok {
		for _, kv := range m.Values {
			if kv.Key.GetToken().Value == "algorithm" {
				l.switchTo(kv.Value.GetToken().Value)
			}
		}
	}
	keys := d.params(&l.Params)
	keys["algorithm"] = func(v value) { choice(d, v, &l.Algorithm, controller.Names()...) }
	delete(keys, "warm_up") // beside limit, since it is a matter of the listener
	d.fields(v, keys)
}

// switchTo forgets what only another algorithm knows.
func (l *Limit) switchTo(algorithm string) {
	if p := &l.Params; algorithm != l.Algorithm {
		l.Params = controller.Params{Initial: p.Initial, Min: p.Min, Max: p.Max}
	}
}

// params returns the keys of an algorithm's settings. Whether the algorithm
// has a setting, and its range, is for the algorithm to say.
func (d *decoder) params(p *controller.Params) map[string]func(value) {
	keys := map[string]func(value){}
	s := reflect.ValueOf(p).Elem()
	for i := range s.NumField() {
		key, field := s.Type().Field(i).Tag.Get("yaml"), s.Field(i)
		if field.Kind() != reflect.Pointer {
			continue
		}
		keys[key] = func(v value) {
			setting := reflect.New(field.Type().Elem())
			if d.setting(v, setting) {
				field.Set(setting)
			}
		}
	}
	return keys
}

// setting reads one setting into what dst points at.
func (d *decoder) setting(v value, dst reflect.Value) (ok bool) {
	switch dst := dst.Interface().(type) {
	case *int:
		*dst, ok = d.number(v, math.MinInt32, math.MaxInt32)
	case *float64:
		*dst, ok = d.float(v)
	case *time.Duration:
		*dst, ok = d.duration(v)
	case encoding.TextUnmarshaler:
		ok = d.unmarshal(v, dst)
	default:
		var s string
		if s, ok = d.scalar(v, "one word"); ok {
			reflect.ValueOf(dst).Elem().SetString(s)
		}
	}
	return ok
}
