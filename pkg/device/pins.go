package device

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// What is noted in the directory, each name with the cookie of the namespace:
//
//	tc_COOKIE_link_INDEX    the TCX link of a device, pinned
//	tc_COOKIE_prog_ID       a program that filters hold, pinned, so that its
//	                        ID is no other's and says whose a filter is
//	tc_COOKIE_qdisc_INDEX   a directory: the device's clsact was made by us
const (
	pinPrefix = "tc_"
	linkPin   = "link"
	progPin   = "prog"
	qdiscPin  = "qdisc"
)

// pins are the notes of one namespace.
type pins struct {
	dir    string
	cookie uint64
}

func (p pins) path(kind string, n int) string {
	return filepath.Join(p.dir, fmt.Sprintf("%s%d_%s_%d", pinPrefix, p.cookie, kind, n))
}

// list returns the numbers of the notes of a kind.
func (p pins) list(kind string) ([]int, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	var all []int
	for _, e := range entries {
		cookie, k, n, ok := parsePin(e.Name())
		if ok && cookie == p.cookie && k == kind {
			all = append(all, n)
		}
	}
	return all, nil
}

func parsePin(name string) (cookie uint64, kind string, n int, ok bool) {
	rest, ok := strings.CutPrefix(name, pinPrefix)
	parts := strings.Split(rest, "_")
	if !ok || len(parts) != 3 {
		return 0, "", 0, false
	}
	cookie, err1 := strconv.ParseUint(parts[0], 10, 64)
	n, err2 := strconv.Atoi(parts[2])
	return cookie, parts[1], n, err1 == nil && err2 == nil
}

// Pinned returns the cookies of the namespaces for which something is noted in
// dir, so that what an earlier agent left in one can be detached by an
// [Attacher] without a program. None if there is no dir. TCX links end when
// their pins are removed, filters do not.
func Pinned(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("devices: %w", err)
	}
	var all []uint64
	for _, e := range entries {
		if cookie, _, _, ok := parsePin(e.Name()); ok && !slices.Contains(all, cookie) {
			all = append(all, cookie)
		}
	}
	return all, nil
}

// IsPin says whether a name in a directory is one that attachers use.
func IsPin(name string) bool {
	_, _, _, ok := parsePin(name)
	return ok
}
