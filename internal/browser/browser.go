// Package browser drives a headless Chromium in tests of web pages.
package browser

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"headgate/internal/lab"
)

// names of the programs, of which any will do.
var names = []string{"chromium-headless-shell", "headless_shell", "chromium", "chromium-browser", "google-chrome"}

// patience is for one action: the machine may be busy.
const patience = 20 * time.Second

// Screen is what a page is shown on.
type Screen struct {
	Width, Height int // in CSS pixels
	Dark          bool
	Touch         bool // a phone
	Still         bool // prefers reduced motion
}

// Tab is a page in a browser of its own.
type Tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	requests []string
	trouble  []string
}

// New starts a browser, which ends with the test. Where none is installed the
// test is skipped, or fails if everything must run.
func New(t *testing.T) *Tab {
	t.Helper()
	path := ""
	for _, name := range names {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if os.Getenv(lab.RequireRoot) == "1" {
			t.Fatal("no Chromium; .ci/deps installs one")
		}
		t.Skip("no Chromium")
	}
	// What it shows is ours, and the sandbox is not to be had everywhere.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
		chromedp.UserDataDir(profile(t)), chromedp.NoSandbox)
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	tab := &Tab{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, tab.hear)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("end the browser: %v", err)
		}
		cancel()
		stop()
	})
	// The first action starts the browser, which ends with the context of it.
	if err := chromedp.Run(ctx, network.Enable(), runtime.Enable(), log.Enable()); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	return tab
}

// profile makes a directory for what a browser keeps, which goes with the test.
// The browser's children write there until they notice that it has ended, so a
// directory found empty may not be.
func profile(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "headgate-browser")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := os.RemoveAll(dir)
		for end := time.Now().Add(patience); err != nil && time.Now().Before(end); err = os.RemoveAll(dir) {
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			t.Errorf("remove the browser's profile: %v", err)
		}
	})
	return dir
}

// hear takes in what the browser tells.
func (tab *Tab) hear(event any) {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		tab.requests = append(tab.requests, e.Request.URL)
	case *runtime.EventExceptionThrown:
		tab.trouble = append(tab.trouble, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError {
			tab.trouble = append(tab.trouble, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// Requests returns the URLs that the page has asked for since the last call.
func (tab *Tab) Requests() []string {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	defer func() { tab.requests = nil }()
	return tab.requests
}

// Trouble returns the errors that the browser has reported since the last
// call: exceptions, what a policy forbids, requests that failed.
func (tab *Tab) Trouble() []string {
	tab.mu.Lock()
	defer tab.mu.Unlock()
	defer func() { tab.trouble = nil }()
	return tab.trouble
}

// Run does the actions in turn.
func (tab *Tab) Run(actions ...chromedp.Action) {
	tab.t.Helper()
	ctx, cancel := context.WithTimeout(tab.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		tab.t.Fatalf("browser: %v; %s", err, strings.Join(tab.Trouble(), "; "))
	}
}

// Show sets the screen.
func (tab *Tab) Show(s Screen) {
	tab.t.Helper()
	scheme, motion := "light", "no-preference"
	if s.Dark {
		scheme = "dark"
	}
	if s.Still {
		motion = "reduce"
	}
	tab.Run(
		emulation.SetDeviceMetricsOverride(int64(s.Width), int64(s.Height), 1, s.Touch),
		emulation.SetTouchEmulationEnabled(s.Touch),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme},
			{Name: "prefers-reduced-motion", Value: motion},
		}),
	)
}

// Open loads a page.
func (tab *Tab) Open(url string) {
	tab.t.Helper()
	tab.Run(chromedp.Navigate(url))
}

// Eval evaluates JavaScript, waits for a promise, and decodes the value.
func (tab *Tab) Eval(script string, value any) {
	tab.t.Helper()
	var raw json.RawMessage
	tab.Run(chromedp.Evaluate(script, &raw, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true).WithReturnByValue(true)
	}))
	if err := json.Unmarshal(raw, value); err != nil {
		tab.t.Fatalf("%s: the value is %s: %v", script, raw, err)
	}
}

// Await waits until JavaScript is true.
func (tab *Tab) Await(script string) {
	tab.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		var ok bool
		if tab.Eval("!!("+script+")", &ok); ok {
			return
		}
		if time.Now().After(deadline) {
			var text string
			tab.Eval("document.body.innerText", &text)
			tab.t.Fatalf("not within %v: %s; the page says:\n%s", patience, script, text)
		}
	}
}

// Node is a part of the page as assistive technology sees it.
type Node struct{ Role, Name string }

// Accessible returns the page as assistive technology sees it.
func (tab *Tab) Accessible() []Node {
	tab.t.Helper()
	var nodes []Node
	tab.Run(chromedp.ActionFunc(func(ctx context.Context) error {
		tree, err := accessibility.GetFullAXTree().Do(ctx)
		for _, n := range tree {
			if n.Ignored || n.Role == nil {
				continue
			}
			var node Node
			if err := json.Unmarshal(n.Role.Value, &node.Role); err != nil {
				return err
			}
			if n.Name != nil {
				if err := json.Unmarshal(n.Name.Value, &node.Name); err != nil {
					return err
				}
			}
			nodes = append(nodes, node)
		}
		return err
	}))
	return nodes
}

// Picture writes a picture of the whole page to a file.
func (tab *Tab) Picture(file string) {
	tab.t.Helper()
	var png []byte
	tab.Run(chromedp.FullScreenshot(&png, 100))
	if err := os.WriteFile(file, png, 0o644); err != nil {
		tab.t.Fatal(err)
	}
}
