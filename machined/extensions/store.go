package extensions

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Store is a directory with the manifests, statements and images of extensions, each a file with
// its SHA-256 as name. The manifest is written last, so its presence means that the extension is
// complete. Manifests and statements are verified at each read. Images are verified when they are
// written, and by dm-verity when they are used. A store has one writer.
type Store struct {
	Dir string
	// Free returns the free space of a directory's file system, in bytes.
	Free func(dir string) (int64, error)
}

func (s Store) path(sum string) string { return filepath.Join(s.Dir, sum) }

var digestForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// readSmall returns a file of at most limit bytes and verifies its digest.
func (s Store) readSmall(sum string, limit int64) ([]byte, error) {
	f, err := os.Open(s.path(sum))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readVerified(f, sum, limit)
}

// readVerified reads at most limit bytes and verifies their SHA-256, sum. The error is
// artifact.ErrDamaged if the digest is another one.
func readVerified(from io.Reader, sum string, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("sha256:%s has more than %d bytes", sum, limit)
	}
	if got := sha256.Sum256(text); hex.EncodeToString(got[:]) != sum {
		return nil, fmt.Errorf("sha256:%s %w: it has the digest sha256:%x", sum, artifact.ErrDamaged, got)
	}
	return text, nil
}

// Read returns the statement of a stored extension, by the digest of its manifest. The error is
// fs.ErrNotExist if the store lacks a part of it, and artifact.ErrDamaged if its manifest or its
// statement must be fetched again.
func (s Store) Read(sum string, trust extension.Trust) (extension.Statement, error) {
	manifest, err := s.readSmall(sum, extension.MaxManifest)
	if err != nil {
		return extension.Statement{}, err
	}
	statement, image, err := extension.Parts(manifest)
	if err != nil {
		return extension.Statement{}, err
	}
	envelope, err := s.readSmall(statement.SHA256, extension.MaxStatement)
	if err != nil {
		return extension.Statement{}, err
	}
	out, err := verifyStatement(envelope, image, trust)
	if err != nil {
		return out, err
	}
	if !s.hasImage(image) {
		return out, fmt.Errorf("the image of extension %s: %w", out.Name, fs.ErrNotExist)
	}
	return out, nil
}

// verifyStatement returns the statement in an envelope. The statement must describe the image.
func verifyStatement(envelope []byte, image artifact.Blob, trust extension.Trust) (extension.Statement, error) {
	s, err := extension.Verify(envelope, trust)
	if err == nil && s.Image != (bundle.Part{SHA256: image.SHA256, Size: image.Size}) {
		err = errors.New("its statement describes another image than its manifest; build it again")
	}
	return s, err
}

// hasImage reports whether the store has a complete image: a file gets the name of an image only
// after all its bytes were verified and flushed.
func (s Store) hasImage(b artifact.Blob) bool {
	info, err := os.Stat(s.path(b.SHA256))
	return err == nil && info.Size() == b.Size
}

// Drop removes a file by its digest, for example a damaged image.
func (s Store) Drop(sum string) error {
	if err := os.Remove(s.path(sum)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("extensions: cannot remove: %w", err)
	}
	return nil
}

// Open opens a file by its digest, for another machine. The error is fs.ErrNotExist if there is
// none.
func (s Store) Open(sum string) (io.ReadCloser, error) {
	if !digestForm.MatchString(sum) {
		return nil, fs.ErrNotExist
	}
	f, err := os.Open(s.path(sum))
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (s Store) makeDir() error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("extensions: cannot create the directory: %w", err)
	}
	return nil
}

// write writes a file atomically, flushed. It fails if the content does not have the digest and the
// size.
func (s Store) write(b artifact.Blob, content io.Reader) error {
	if err := s.makeDir(); err != nil {
		return err
	}
	f, err := renameio.NewPendingFile(s.path(b.SHA256), renameio.WithTempDir(s.Dir), renameio.WithPermissions(0o400))
	if err != nil {
		return fmt.Errorf("extensions: cannot write: %w", err)
	}
	defer f.Cleanup() // no effect after the rename
	if err := b.Copy(f, content); err != nil {
		return err
	}
	if err := errors.Join(f.CloseAtomicallyReplace(), safefile.SyncDir(s.Dir)); err != nil {
		return fmt.Errorf("extensions: cannot write: %w", err)
	}
	return nil
}

// Prune removes the files of all extensions except those with these manifests, and leftovers of
// interrupted writes. It returns the number of removed files.
func (s Store) Prune(keep []string) (dropped int, err error) {
	kept := map[string]bool{}
	for _, sum := range keep {
		kept[sum] = true
		manifest, err := s.readSmall(sum, extension.MaxManifest)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, artifact.ErrDamaged) {
			continue // a fetch of the manifest fetches its other files, too
		}
		if err != nil {
			return 0, err
		}
		statement, image, err := extension.Parts(manifest)
		if err != nil {
			continue // this manifest describes no extension, so it refers to no other files
		}
		kept[statement.SHA256], kept[image.SHA256] = true, true
	}
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("extensions: %w", err)
	}
	for _, e := range entries {
		if kept[e.Name()] {
			continue
		}
		if err := s.Drop(e.Name()); err != nil {
			return dropped, err
		}
		dropped++
	}
	return dropped, nil
}
