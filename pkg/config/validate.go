package config

import (
	"cmp"
	"errors"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"headgate/pkg/controller"
)

// SocketNone is the value of the key socket that there is none.
const SocketNone = "none"

// maxSocket is how long the name of a unix socket can be (sun_path of unix(7)).
const maxSocket = 107

var ruleName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`)

// validate checks what is more than the range of one value.
func (d *decoder) validate(c *Config, sshPorts []uint16) {
	listen := d.validateListen(c)
	if !filepath.IsAbs(c.State) || filepath.Clean(c.State) == "/" {
		d.failf(d.where("state"), "%s is not the absolute path of a directory", quote(c.State))
	} else {
		c.State = filepath.Clean(c.State) // of /a/../b not even a is made
	}
	if c.Socket != SocketNone && (!filepath.IsAbs(c.Socket) || len(c.Socket) > maxSocket) {
		d.failf(d.where("socket"), "%s is neither none nor an absolute path of at most %d bytes", quote(c.Socket), maxSocket)
	}
	if c.Lease < 3*c.Window {
		d.failf(d.where("lease", "window"), "the lease of %v is less than 3 windows of %v", c.Lease, c.Window)
	}
	if len(c.Rules) == 0 && len(d.errs) == 0 {
		d.failf(d.where("rules"), "no rule: nothing would be protected")
	}
	names, targets, prefixes := map[string]place{}, map[target]place{}, 0
	for i := range c.Rules {
		if d.full() {
			return
		}
		r, o := &c.Rules[i], d.rules[i]
		own := d.validatePorts(r, o, targets)
		if _, given := d.own(o, "name"); given || own {
			d.validateName(r, o, names)
		}
		d.validateLimit(r, o)
		d.validateUnit(r, o)
		d.validateSignal(r, o)
		d.validateWaits(r, o)
		d.validateSources(r, o)
		if prefixes += r.prefixes(); prefixes > maxPrefixes && len(d.errs) == 0 {
			d.failf(o.at, "with this rule the targets have %d networks of sources, more than %d", prefixes, maxPrefixes)
		}
		for j, port := range r.Ports {
			switch {
			case r.Force || !r.Scope.mayBeHost():
			case slices.Contains(sshPorts, port):
				d.failf(o.ports[j], "port %d is that of your ssh session, which the rule could lock out; set force: true if that is meant", port)
			case port == listen:
				d.failf(o.ports[j], "port %d is the agent's own (%s), whose scrapes the rule could refuse; set force: true if that is meant", port, d.where("listen"))
			}
		}
	}
}

type target struct {
	scope Scope
	port  uint16
}

// validateListen returns the port of listen, 0 when there is none.
func (d *decoder) validateListen(c *Config) uint16 {
	_, service, err := net.SplitHostPort(c.Listen)
	port, notNumber := strconv.ParseUint(service, 10, 16)
	if err != nil || notNumber != nil {
		d.failf(d.where("listen"), "%s is not host:port, such as 127.0.0.1:9464 or [::1]:9464", quote(c.Listen))
	}
	return uint16(port)
}

func (d *decoder) validateName(r *Rule, o origin, seen map[string]place) {
	at := d.where(o.at.key + ".name")
	if at.line == 0 {
		at = o.at
	}
	if !ruleName.MatchString(r.Name) {
		d.failf(at, "%s is not 1 to 63 letters, digits, dots, dashes and underscores", quote(r.Name))
		return
	}
	if first, ok := seen[r.Name]; ok {
		d.failf(at, "a rule named %s is at %s already", r.Name, first)
		return
	}
	seen[r.Name] = at
}

// validatePorts reports whether the rule has ports, all its own: without,
// neither is a name made from them.
func (d *decoder) validatePorts(r *Rule, o origin, seen map[target]place) bool {
	own := len(r.Ports) > 0
	port, one := d.own(o, "port")
	_, several := d.own(o, "ports")
	if one && several {
		d.failf(port, "port and ports cannot both be given")
	}
	_, some := d.own(o, "ports[0]")
	if !one && !some && !own && r.Scope.Pods.Annotations {
		return true // its pods say which
	}
	if !one && !some && !own {
		d.failf(o.at, "the rule has no port")
	}
	for i, p := range r.Ports {
		t := target{r.Scope, p}
		if first, ok := seen[t]; ok {
			d.failf(o.ports[i], "port %d of scope %s is protected at %s already", p, r.Scope, first)
			own = false
			continue
		}
		seen[t] = o.ports[i]
	}
	return own
}

// validateLimit lets the algorithm judge its settings.
func (d *decoder) validateLimit(r *Rule, o origin) {
	_, err := Target{Rule: r}.NewAlgorithm()
	for _, err := range split(err) {
		key, reason := "", err.Error()
		if e := (*controller.ParamError)(nil); errors.As(err, &e) {
			key, reason = e.Key, e.Reason
		}
		d.failf(d.whereRule(o, key), "%s", reason)
	}
	if initial := r.Limit.Params.Initial; err == nil && initial != nil && *initial == 0 && !r.Force {
		d.failf(d.whereRule(o, "initial"), "a limit of 0 refuses everybody; set force: true if that is meant")
	}
}

// split returns the errors that errors.Join put together.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// where returns where the first of some keys that was written is.
func (d *decoder) where(keys ...string) place {
	for _, k := range keys {
		if at, ok := d.at[k]; ok {
			return at
		}
	}
	return place{file: cmp.Or(d.file, "configuration"), key: keys[0]}
}

// whereRule returns where a key of a rule or of its limit is, in the rule or in
// the defaults.
func (d *decoder) whereRule(o origin, key string) place {
	var keys []string
	for _, rule := range []string{o.at.key, "defaults"} {
		keys = append(keys, rule+".limit."+key, rule+"."+key)
	}
	for _, k := range keys {
		if at, ok := d.at[k]; ok {
			return at
		}
	}
	return d.where(keys[0])
}
