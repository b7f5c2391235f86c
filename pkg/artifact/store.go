package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/pkg/safefile"
)

// Source provides the blobs of artifacts.
type Source interface {
	// Open returns a reader of a blob. The error is fs.ErrNotExist if the source does not have the
	// blob.
	Open(ctx context.Context, b Blob) (io.ReadCloser, error)
}

// Store is a directory of artifacts with a file for each manifest and each layer, named by digest.
// The manifest is written last, so its presence means that the artifact is complete. Readers verify
// the digest of every file. A store has one writer.
type Store struct {
	Dir   string
	Group int // group ID with read permission; manifests can contain Secrets
}

// ErrDamaged is returned when the content of a file does not match the digest in its name.
var ErrDamaged = errors.New("is damaged")

func (s Store) path(sum string) string { return filepath.Join(s.Dir, sum) }

// read returns a blob of the store and verifies its digest.
func (s Store) read(b Blob) ([]byte, error) {
	most := b.Size
	if most < 0 {
		most = MaxManifest
	}
	f, err := os.Open(s.path(b.SHA256))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != b.SHA256 {
		return nil, fmt.Errorf("%s %w", f.Name(), ErrDamaged)
	}
	return content, nil
}

// layers returns the layers of a stored artifact.
func (s Store) layers(sum string) ([]Layer, error) {
	manifest, err := s.read(Blob{sum, -1})
	if err != nil {
		return nil, err
	}
	return Layers(manifest)
}

// Texts returns the files of an artifact, identified by the digest of its manifest. If the caller
// must fetch the artifact again, the error is fs.ErrNotExist or ErrDamaged; other errors describe a
// defect of the artifact itself.
func (s Store) Texts(sum string) ([]Text, error) {
	layers, err := s.layers(sum)
	if err != nil {
		return nil, err
	}
	return Texts(layers, func(l Layer) ([]byte, error) { return s.read(l.Blob) })
}

// Verify checks that an artifact is complete and undamaged. It returns nil, fs.ErrNotExist,
// ErrDamaged, or the defect of the manifest.
func (s Store) Verify(sum string) error {
	layers, err := s.layers(sum)
	for _, l := range layers {
		if _, err := s.read(l.Blob); err != nil {
			return err
		}
	}
	return err
}

// Fetch fetches the blobs of an artifact that are missing in the store. If it returns nil, the
// artifact is on disk and survives a power cut.
func (s Store) Fetch(ctx context.Context, sum string, from Source) error {
	if err := s.makeDir(); err != nil {
		return fmt.Errorf("artifacts: cannot create the directory: %w", err)
	}
	manifest, err := fetchManifest(ctx, sum, from)
	if err != nil {
		return err
	}
	layers, err := Layers(manifest)
	if err != nil {
		return err
	}
	for _, l := range layers {
		if err := s.fetch(ctx, l.Blob, from); err != nil {
			return err
		}
	}
	return s.write(sum, func(w io.Writer) error { _, err := w.Write(manifest); return err })
}

// makeDir creates the directory of the store. Its parent directories are readable by all users.
func (s Store) makeDir() error {
	err := os.MkdirAll(filepath.Dir(s.Dir), 0o755)
	if err == nil {
		err = os.Mkdir(s.Dir, 0o750)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return errors.Join(os.Chown(s.Dir, -1, s.Group), os.Chmod(s.Dir, 0o750))
}

func fetchManifest(ctx context.Context, sum string, from Source) ([]byte, error) {
	body, err := from.Open(ctx, Blob{sum, -1})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	manifest, err := io.ReadAll(io.LimitReader(body, MaxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("the manifest: %w", err)
	}
	if len(manifest) > MaxManifest {
		return nil, fmt.Errorf("the manifest has more than %d MiB", MaxManifest>>20)
	}
	if got := sha256.Sum256(manifest); hex.EncodeToString(got[:]) != sum {
		return nil, fmt.Errorf("the manifest does not match: it has the digest sha256:%x", got)
	}
	return manifest, nil
}

// fetch fetches a layer that is missing in the store.
func (s Store) fetch(ctx context.Context, b Blob, from Source) error {
	if _, err := s.read(b); err == nil {
		return nil
	}
	body, err := from.Open(ctx, b)
	if err != nil {
		return err
	}
	defer body.Close()
	return s.write(b.SHA256, func(w io.Writer) error {
		if err := b.Copy(w, body); err != nil {
			return fmt.Errorf("layer %w", err)
		}
		return nil
	})
}

// Copy copies the content of a blob with a known size. It fails if the content does not have the
// digest and the size of the blob. It writes at most one byte more than the size.
func (b Blob) Copy(to io.Writer, from io.Reader) error {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, sum), io.LimitReader(from, b.Size+1))
	if err != nil {
		return fmt.Errorf("sha256:%s: %w", b.SHA256, err)
	}
	if n != b.Size || hex.EncodeToString(sum.Sum(nil)) != b.SHA256 {
		return fmt.Errorf("sha256:%s: the received data does not match the digest or the size of %d bytes", b.SHA256, b.Size)
	}
	return nil
}

// write writes a file of the store atomically.
func (s Store) write(sum string, content func(io.Writer) error) error {
	f, err := renameio.NewPendingFile(s.path(sum), renameio.WithTempDir(s.Dir), renameio.WithPermissions(0o440))
	if err != nil {
		return fmt.Errorf("artifacts: cannot write: %w", err)
	}
	defer f.Cleanup() // no effect after the rename
	if err := content(f); err != nil {
		return err
	}
	err = f.Chown(-1, s.Group)
	if err == nil {
		err = f.CloseAtomicallyReplace()
	}
	if err == nil {
		err = safefile.SyncDir(s.Dir)
	}
	if err != nil {
		return fmt.Errorf("artifacts: cannot write: %w", err)
	}
	return nil
}

// Prune deletes all blobs except those of the given artifacts, and returns the number of deleted
// files. If the store lacks the manifest of a given artifact, Prune fails and deletes nothing.
func (s Store) Prune(sums []string) (dropped int, err error) {
	keep := map[string]bool{}
	for _, sum := range sums {
		keep[sum] = true
		layers, err := s.layers(sum)
		if err != nil {
			return 0, fmt.Errorf("artifacts: cannot prune: sha256:%s: %w", sum, err)
		}
		for _, l := range layers {
			keep[l.SHA256] = true
		}
	}
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("artifacts: %w", err)
	}
	for _, e := range entries {
		if keep[e.Name()] {
			continue
		}
		if err := os.Remove(s.path(e.Name())); err != nil {
			return dropped, fmt.Errorf("artifacts: %w", err)
		}
		dropped++
	}
	return dropped, nil
}
