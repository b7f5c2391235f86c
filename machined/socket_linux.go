package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/orlop-os/orlop/pkg/paths"
)

// listenForApid creates the Unix socket to which only root and apid's group can connect.
func listenForApid(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("api: cannot create directory: %w", err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("api: cannot replace the socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("api: cannot listen: %w", err)
	}
	if err := errors.Join(os.Chown(path, 0, paths.UserApid), os.Chmod(path, 0o660)); err != nil {
		l.Close()
		return nil, fmt.Errorf("api: cannot give the socket to apid: %w", err)
	}
	return l, nil
}
