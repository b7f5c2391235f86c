package suspend

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// maxSuspended is the largest number of objects on STATE. maxSuspendedSize is the largest size of
// each object, in bytes; etcd accepts 1.5 MiB.
const (
	maxSuspended     = 64
	maxSuspendedSize = 2 << 20
)

// object is the stored copy of a suspended object.
type object struct {
	Kind   string          `json:"kind"` // nodespec.SuspendKind.Name
	Name   string          `json:"name"`
	At     time.Time       `json:"at"`
	By     string          `json:"by"`
	Object json.RawMessage `json:"object"`
}

func (o object) message() *api.SuspendedObject {
	return &api.SuspendedObject{Kind: o.Kind, Name: o.Name, At: timestamppb.New(o.At), By: o.By}
}

// store reads and writes the stored objects, one file for each object in the directory dir.
type store struct{ dir string }

// file returns the path of an object's file. The file name is a hash, because the name of an object
// may be too long for a file name.
func (s store) file(kind, name string) string {
	sum := sha256.Sum256([]byte(kind + "/" + name))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:])+".json")
}

// put stores an object. It replaces a stored object of the same kind and name.
func (s store) put(o object) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("suspended objects: cannot create their directory: %w", err)
	}
	files, err := os.ReadDir(s.dir) // unreadable files also use space
	if err != nil {
		return fmt.Errorf("suspended objects: cannot list: %w", err)
	}
	same := func(f fs.DirEntry) bool { return f.Name() == filepath.Base(s.file(o.Kind, o.Name)) }
	if len(files) >= maxSuspended && !slices.ContainsFunc(files, same) {
		return fmt.Errorf("suspended objects: %d are stored, and no more can be: resume or discard some (`orlopctl kubernetes suspended`)", len(files))
	}
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("%s %s: cannot encode: %w", o.Kind, o.Name, err)
	}
	if len(text) > maxSuspendedSize {
		return fmt.Errorf("%s %s: cannot store: %d bytes exceed the limit of %d", o.Kind, o.Name, len(text), maxSuspendedSize)
	}
	if err := safefile.WriteFile(s.file(o.Kind, o.Name), text, 0o600); err != nil {
		return fmt.Errorf("%s %s: cannot store: %w", o.Kind, o.Name, err)
	}
	return safefile.SyncDir(filepath.Dir(s.dir))
}

// get returns the stored object of a kind and name. The error is fs.ErrNotExist if there is none.
func (s store) get(kind, name string) (object, error) {
	return readObject(s.file(kind, name))
}

func readObject(path string) (o object, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, fmt.Errorf("%s: cannot decode: %w", path, err)
	}
	return o, nil
}

func (s store) drop(kind, name string) error {
	if err := os.Remove(s.file(kind, name)); err != nil {
		return fmt.Errorf("%s %s: cannot delete the stored copy: %w", kind, name, err)
	}
	return safefile.SyncDir(s.dir)
}

// list returns all readable objects, sorted by kind and name, and an error for each unreadable file
// in damaged.
func (s store) list() (out []object, damaged []error, err error) {
	files, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("suspended objects: cannot list: %w", err)
	}
	for _, f := range files {
		if o, err := readObject(filepath.Join(s.dir, f.Name())); err == nil {
			out = append(out, o)
		} else {
			damaged = append(damaged, err)
		}
	}
	slices.SortFunc(out, func(a, b object) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return out, damaged, nil
}

// undo reverts the put of o. It stores before again if had is nil, else it deletes the stored copy.
// before and had are the results of get before the put.
func (s store) undo(o, before object, had error) error {
	if had == nil {
		return s.put(before)
	}
	return s.drop(o.Kind, o.Name)
}
