package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/orlop-os/orlop/machined/volumes/swap"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
)

// read reads the actual state that a configuration needs.
func (c *Controller) read(ctx context.Context, want Config) (have Have, err error) {
	if have.Records, err = readRecords(c.deps.Records); err != nil {
		return have, err
	}
	if have.Mounts, err = mount.List(); err != nil {
		return have, err
	}
	if have.Areas, err = swap.Areas(); err != nil {
		return have, err
	}
	if have.Zswap, err = swap.ReadZswap(); err != nil {
		return have, err
	}
	if have.Disks, err = c.deps.Disks(ctx, false); err != nil {
		return have, err
	}
	have.Busy, have.Places = c.deps.Busy(), map[string]Place{}
	all := want.Volumes
	for _, r := range have.Records {
		all = append(all, Volume{Name: r.Name, Use: r.Use})
	}
	for _, v := range all {
		for _, at := range places(v) {
			p, err := readPlace(at.path)
			if err != nil {
				return have, err
			}
			_, err = os.Lstat(at.path + movedSuffix)
			p.Moved = err == nil
			have.Places[at.path] = p
		}
	}
	have.Matches, err = c.matches(ctx, want, have)
	return have, err
}

// readPlace returns the state of a path on DATA, without Moved.
func readPlace(path string) (Place, error) {
	if link, err := os.Readlink(path); err == nil {
		return Place{Link: link}, nil
	}
	dir, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Place{Empty: true}, nil
	}
	if err != nil {
		return Place{}, err
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return Place{Empty: true}, nil
	}
	return Place{}, err
}

// matches evaluates the match expressions of the volumes that have no record yet. The orchestrator
// evaluates an expression, which takes about a second, so matches caches the results until a disk
// changes.
func (c *Controller) matches(ctx context.Context, want Config, have Have) (map[string]map[string]bool, error) {
	c.matching.Lock()
	defer c.matching.Unlock()
	var disks []diskmatch.Disk
	for _, d := range have.Disks {
		disks = append(disks, d.Disk)
	}
	seen, err := json.Marshal(disks)
	if err != nil {
		return nil, err
	}
	if c.evaluated.disks != string(seen) {
		c.evaluated = evaluated{disks: string(seen), results: map[string]map[string]bool{}}
	}
	out := map[string]map[string]bool{}
	for _, v := range want.Volumes {
		if _, recorded := recordOf(have.Records, v.Name); recorded || v.Disk.Match == "" {
			continue
		}
		if c.evaluated.results[v.Disk.Match] == nil {
			if c.evaluated.results[v.Disk.Match], err = diskmatch.Evaluate(ctx, c.deps.Command, v.Disk.Match, disks); err != nil {
				return nil, err
			}
		}
		out[v.Name] = c.evaluated.results[v.Disk.Match]
	}
	return out, nil
}

// evaluated is the cache of matches: the results by expression and then by the path of a disk.
type evaluated struct {
	disks   string // disks of the results, as JSON
	results map[string]map[string]bool
}
