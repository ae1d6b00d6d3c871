package config

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Input is what a configuration is made from.
type Input struct {
	// File is the path of a YAML file; empty for none.
	File string

	// Ports are the values of -p: each adds a rule for that port, with the
	// file's defaults.
	Ports []string

	// Overrides stand in for keys of the file; the first that knows a key
	// counts. Give the flags first, then [Environment].
	Overrides []Override

	// SSHPorts are the server's ports of the ssh sessions of those who ask for
	// this configuration, 0 for none; see [SSHPort].
	SSHPorts []uint16

	// Force is the force key of every rule.
	Force bool
}

// Override says what stands in for a top-level key with a single value
// (listen, web_config, socket, socket_group, state, window, lease, mode), and how an error is to
// name its place. It returns false for a key that it leaves alone.
type Override func(key string) (text, place string, ok bool)

// Environment is the Override of the variables HEADGATE_LISTEN,
// HEADGATE_WEB_CONFIG and so on. An empty variable is as good as none.
// lookup is [os.LookupEnv].
func Environment(lookup func(name string) (string, bool)) Override {
	return func(key string) (string, string, bool) {
		name := "HEADGATE_" + strings.ToUpper(key)
		text, _ := lookup(name)
		return text, name, text != ""
	}
}

// Default returns the configuration of an empty file: every default, no rule.
func Default() *Config {
	return &Config{
		Listen: "127.0.0.1:9464",
		Socket: "/run/headgate/headgate.sock",
		State:  "/sys/fs/bpf/headgate",
		Window: 100 * time.Millisecond,
		Lease:  3 * time.Second,
		Mode:   ModeEnforce,
	}
}

// DefaultRule returns what a rule is that says nothing. Its mode is that of
// the Config.
func DefaultRule() Rule {
	return Rule{
		Unit:      UnitConnection,
		Signal:    SignalService,
		Limit:     Limit{Algorithm: "guarded"},
		Hold:      Hold{MaxWaiting: 1000, Order: OrderFIFO},
		Pace:      Pace{Burst: 1, Headroom: 1.2, WarmUp: Ramp{ColdFactor: 3}},
		Reject:    RejectReset,
		PerSource: PerSource{Prefix4: 32, Prefix6: 64},
	}
}

// patience is how long [Load] waits for what a pipe has to say.
const patience = 5 * time.Second

// Load makes a configuration. When the file can be read but is wrong, or an
// override or port is, the error is of type [Errors] and holds everything
// that is wrong. A pipe will do for a file; one that nobody writes to is empty,
// and one that is not closed within 5 s is an error.
func Load(in Input) (*Config, error) {
	if in.File == "" {
		return Parse(nil, in)
	}
	data, err := read(in.File, patience)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(data, in)
}

// read returns what is in a file, or in a pipe if that is closed within patience:
// an agent that waited for it would hear nothing else.
func read(file string, patience time.Duration) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	_ = f.SetReadDeadline(time.Now().Add(patience)) // a regular file has none and needs none
	return io.ReadAll(io.LimitReader(f, maxSize+1))
}

// Parse is Load with the content of in.File at hand.
func Parse(data []byte, in Input) (*Config, error) {
	d := &decoder{file: in.File, at: map[string]place{}}
	c, base := Default(), DefaultRule()
	if n := d.document(in.File, data); n != nil {
		d.config(value{node: n, at: nodePlace(in.File, n)}, c, &base)
	}
	if c.WebConfig != "" && !filepath.IsAbs(c.WebConfig) {
		c.WebConfig = filepath.Join(filepath.Dir(in.File), c.WebConfig)
	}
	d.override(c, in.Overrides)
	for _, port := range in.Ports {
		at := place{file: "-p " + quote(port)}
		r, o := base, origin{at: at}
		d.rule(&r, &o)["port"](textValue(port, at))
		if len(r.Ports) > 0 {
			c.Rules = append(c.Rules, r)
			d.rules = append(d.rules, o)
		}
	}
	d.complete(c, in.Force)
	d.validate(c, in.SSHPorts)
	if err := d.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// override lets flags and variables stand in for keys.
func (d *decoder) override(c *Config, overrides []Override) {
	for key, read := range d.top(c) {
		for _, o := range overrides {
			text, where, ok := o(key)
			if !ok {
				continue
			}
			d.at[key] = place{file: where, key: key}
			read(textValue(text, d.at[key]))
			break
		}
	}
}

// complete fills in what depends on other keys.
func (d *decoder) complete(c *Config, force bool) {
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Name == "" && len(r.Ports) > 0 {
			r.Name = fmt.Sprintf("port-%d", r.Ports[0])
		}
		if r.Name == "" && r.Scope.Pods.Annotations {
			r.Name = "pods"
		}
		if r.Mode == "" {
			r.Mode = c.Mode
		}
		r.Force = r.Force || force
	}
}

// OverridableKeys returns the keys that an [Override] can stand in for, sorted.
func OverridableKeys() []string {
	return slices.Sorted(maps.Keys(new(decoder).top(new(Config))))
}
