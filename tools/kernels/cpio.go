package main

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// cpio writes an archive that the kernel unpacks into its first file system
// (Documentation/driver-api/early-userspace/buffer-format.rst of Linux, "newc").
type cpio struct {
	w    *bufio.Writer
	made map[string]bool // directories
	n    int             // of bytes
	ino  int
	err  error
}

func newCPIO(w io.Writer) *cpio {
	return &cpio{w: bufio.NewWriterSize(w, 1<<20), made: map[string]bool{".": true}}
}

// file adds a regular file with the content of another.
func (c *cpio) file(name, from string, mode fs.FileMode) {
	f, err := os.Open(from)
	if err != nil {
		c.fail(err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		c.fail(err)
		return
	}
	c.header(name, 0o100000|uint32(mode.Perm()), info.Size())
	n, err := io.Copy(c.w, f)
	if err == nil && n != info.Size() {
		err = fmt.Errorf("%s changed while it was read", from)
	}
	c.fail(err)
	c.n += int(n)
	c.pad()
}

// text adds a regular file.
func (c *cpio) text(name, content string, mode fs.FileMode) {
	c.header(name, 0o100000|uint32(mode.Perm()), int64(len(content)))
	c.write(content)
	c.pad()
}

// link adds a symbolic link.
func (c *cpio) link(name, to string) {
	c.header(name, 0o120777, int64(len(to)))
	c.write(to)
	c.pad()
}

// tree adds a directory with all that is in it.
func (c *cpio) tree(name, from string) {
	c.fail(filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		c.file(filepath.Join(name, rel), path, 0o644)
		return nil
	}))
}

func (c *cpio) directory(name string) {
	if c.made[name] {
		return
	}
	c.directory(filepath.Dir(name))
	c.made[name] = true
	c.entry(name, 0o040755, 0)
}

func (c *cpio) header(name string, mode uint32, size int64) {
	c.directory(filepath.Dir(name))
	c.entry(name, mode, size)
}

func (c *cpio) entry(name string, mode uint32, size int64) {
	c.ino++
	c.write(fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.ino, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name))
	c.pad()
}

// pad fills up to the next multiple of four.
func (c *cpio) pad() { c.write("\x00\x00\x00"[:-c.n&3]) }

func (c *cpio) write(s string) {
	n, err := c.w.WriteString(s)
	c.n += n
	c.fail(err)
}

func (c *cpio) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// close ends the archive and returns the first error.
func (c *cpio) close() error {
	c.entry("TRAILER!!!", 0, 0)
	c.fail(c.w.Flush())
	return c.err
}
