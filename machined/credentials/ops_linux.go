package credentials

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/pkg/pki"
)

// makeDir creates the directory of a process, or restores its owner and mode.
type makeDir struct{ Dir }

func (o makeDir) String() string {
	if o.Shared {
		return fmt.Sprintf("create directory %s for user %d, readable for all", o.Path, o.UID)
	}
	return fmt.Sprintf("create directory %s for user %d", o.Path, o.UID)
}

func (o makeDir) Do(context.Context) error {
	// Other users must be able to traverse the parent directories.
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o755); err != nil {
		return fmt.Errorf("credentials: cannot create directory: %w", err)
	}
	if err := os.Mkdir(o.Path, o.mode()); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("credentials: cannot create directory: %w", err)
	}
	if err := os.Chmod(o.Path, o.mode()); err != nil {
		return fmt.Errorf("credentials: cannot create directory: %w", err)
	}
	if err := os.Chown(o.Path, int(o.UID), int(o.UID)); err != nil {
		return fmt.Errorf("credentials: cannot change owner of directory to user %d: %w", o.UID, err)
	}
	return nil
}

// writeFile writes a file with known content.
type writeFile struct{ File }

func (o writeFile) String() string { return fmt.Sprintf("write %s for user %d", o.Path, o.UID) }

func (o writeFile) Do(context.Context) error { return write(o.Path, o.UID, o.Mode, o.Content) }

// removeFile removes a file that matches Want.Strays and that Want.Files does not name.
type removeFile struct{ path string }

func (o removeFile) String() string { return "remove " + o.path }

func (o removeFile) Do(context.Context) error {
	if err := os.Remove(o.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("credentials: cannot remove: %w", err)
	}
	return nil
}

// issue creates a certificate and its key. It writes the key first. After a power cut between the
// two, the certificate does not match the key, and the next reconciliation issues both again.
type issue struct {
	Leaf
	reason string
}

func (o issue) String() string {
	return fmt.Sprintf("issue %s for user %d: %s (%s)", o.Cert, o.UID, o.Spec.CN, o.reason)
}

func (o issue) Do(context.Context) error {
	var leaf *pki.Leaf
	var err error
	if o.By == nil {
		leaf, err = pki.SelfSigned(o.Spec)
	} else {
		leaf, err = o.By.Issue(o.Spec)
	}
	if err != nil {
		return fmt.Errorf("credentials: cannot issue %s: %w", o.Cert, err)
	}
	if err := write(o.Key, o.UID, 0o400, leaf.KeyPEM()); err != nil {
		return err
	}
	return write(o.Cert, o.UID, 0o400, leaf.CertPEM())
}

// write replaces a file atomically: readers see the old or the new content, and never a wrong owner
// or mode.
func write(path string, uid uint32, mode fs.FileMode, content []byte) error {
	f, err := renameio.NewPendingFile(path, renameio.WithPermissions(mode), renameio.WithExistingPermissions())
	if err != nil {
		return fmt.Errorf("credentials: cannot write %s: %w", path, err)
	}
	defer f.Cleanup()
	if err := f.Chmod(mode); err != nil {
		return fmt.Errorf("credentials: cannot write %s: %w", path, err)
	}
	if err := f.Chown(int(uid), int(uid)); err != nil {
		return fmt.Errorf("credentials: cannot give %s to user %d: %w", path, uid, err)
	}
	if _, err := f.Write(content); err != nil {
		return fmt.Errorf("credentials: cannot write %s: %w", path, err)
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("credentials: cannot write %s: %w", path, err)
	}
	return nil
}
