package safefile

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// Listen creates a Unix socket on which a child process listens (Inherited). It replaces an
// existing socket. The parameter `directory` is the mode of the parent directory, which Listen
// creates if necessary. Root can connect. If group is not 0, this group can connect, too. The
// caller closes the file.
func Listen(path string, group int, directory fs.FileMode) (*os.File, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, directory); err != nil {
		return nil, fmt.Errorf("cannot create directory: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot replace the socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	if group != 0 {
		if err := errors.Join(os.Chown(path, 0, group), os.Chmod(path, 0o660)); err != nil {
			return nil, fmt.Errorf("cannot give the socket to its group: %w", err)
		}
	}
	return l.File()
}
