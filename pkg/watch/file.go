// Package watch tells when the content of a file has changed.
package watch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

const (
	// quiet is how long nothing happens any more before the file is read: an
	// editor writes it in several steps.
	quiet = 150 * time.Millisecond

	// latest is how long that may put the reading off, in a directory where
	// something happens all the time.
	latest = 2 * time.Second

	// recheck is how often the file is looked at though nothing was told: some
	// file systems tell nothing.
	recheck = 5 * time.Second

	// maxSize is how much of the file is looked at.
	maxSize = 2 << 20

	// maxLinks is how many symbolic links are followed from the name to the file.
	maxLinks = 40
)

// File calls changed each time the file of a name has another content than
// before, or is there no more, until ctx ends. What it begins with is what the
// caller has read; give it as [Sum] of a time before that. The name may lead
// over symbolic links, of which each may come to lead elsewhere: Kubernetes
// swaps one in the middle. The directories of all of them are watched.
func File(ctx context.Context, name string, begin Content, log *slog.Logger, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", name, err)
	}
	defer w.Close()
	f := file{name: name, was: begin, watcher: w, log: log}
	f.watchAll()

	timer := time.NewTimer(0)
	defer timer.Stop()
	due := time.Now() // at the latest
	pending := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.Events:
			if !ok {
				return nil
			}
			now := time.Now()
			if !pending {
				pending, due = true, now.Add(latest)
			}
			timer.Reset(min(quiet, time.Until(due)))
			continue
		case err, ok := <-w.Errors:
			if !ok {
				return nil
			}
			log.Debug("watch a file", "file", name, "error", err)
			continue
		case <-timer.C:
		}
		pending = false
		f.watchAll()
		if f.look() {
			changed()
		}
		timer.Reset(recheck)
	}
}

type file struct {
	name    string
	was     Content
	watcher *fsnotify.Watcher
	log     *slog.Logger
	trouble string
}

// Content stands for what is in a file.
type Content struct {
	sum [sha256.Size]byte
	err string // why it cannot be read
}

// Sum reads a file. What is no regular file is left alone: what a pipe says can
// be read only once, and perhaps has to be waited for.
func Sum(name string) Content {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return Content{err: "no regular file"}
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe may have come in between
	if err != nil {
		return Content{err: reason(err)}
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxSize)); err != nil {
		return Content{err: reason(err)}
	}
	return Content{sum: [sha256.Size]byte(h.Sum(nil))}
}

func reason(err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func (f *file) look() bool {
	is := Sum(f.name)
	if is == f.was {
		return false
	}
	f.was = is
	return true
}

// watchAll watches the directories on the way to the file, and no other ones.
func (f *file) watchAll() {
	want := make(map[string]bool)
	for _, dir := range directories(f.name) {
		want[dir] = true
	}
	for _, dir := range f.watcher.WatchList() {
		if !want[dir] {
			_ = f.watcher.Remove(dir) // it may be gone
		}
	}
	trouble := ""
	for dir := range want {
		// One that was removed and made anew has to be added again.
		if err := f.watcher.Add(dir); err != nil {
			trouble = fmt.Sprintf("%s: %v", dir, err)
		}
	}
	if trouble != "" && trouble != f.trouble {
		f.log.Warn("cannot watch for changes of a file; it is looked at now and then", "file", f.name, "every", recheck, "reason", trouble)
	}
	f.trouble = trouble
}

// directories returns those that hold the name, and each link on the way to what
// it stands for.
func directories(name string) []string {
	var dirs []string
	for range maxLinks {
		dir := filepath.Dir(name)
		dirs = append(dirs, dir)
		// A link may also be among the directories above.
		if real, err := filepath.EvalSymlinks(dir); err == nil && real != filepath.Clean(dir) {
			dirs = append(dirs, real)
			for at := dir; at != filepath.Dir(at); at = filepath.Dir(at) {
				if _, err := os.Readlink(at); err == nil {
					dirs = append(dirs, filepath.Dir(at))
				}
			}
		}
		to, err := os.Readlink(name)
		if err != nil {
			return dirs
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		name = to
	}
	return dirs
}
