package debug

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Files that clients may read (package safefile). The allow-list contains paths that are known to
// hold no secret; no other path is readable. For example, clients cannot read STATE, data of the
// cluster or of containers, the credentials, environment, memory or open files of processes, and
// firmware variables.

const (
	// maxFileReads bounds concurrent reads. A read that never returns (a driver that hangs) counts
	// until the next boot.
	maxFileReads = 4
	// maxRead bounds the bytes that a call sends of a file. readTimeout bounds the duration of the
	// call. Both are necessary because a file in /proc and /sys may have no end.
	maxRead     = 16 << 20
	readTimeout = 30 * time.Second
	// readChunk is the size of a message, in bytes.
	readChunk = 64 << 10
	// maxEntries bounds the listed entries of a directory.
	maxEntries = 10000
)

// files is the allow-list.
var files = &safefile.AllowList{
	Root: "/",
	Trees: append([]safefile.Subtree{
		// files of the image, which are public; Hidden excludes a configuration in the image
		{Path: "/usr"}, {Path: "/etc"},
		// targets of links in /etc
		{Path: paths.ResolvConf}, {Path: paths.Hosts}, {Path: paths.Hostname}, {Path: paths.MachineID},
		{Path: "/sys/block"}, {Path: "/sys/bus"}, {Path: "/sys/class"}, {Path: "/sys/dev"}, {Path: "/sys/devices"}, {Path: "/sys/module"},
		{Path: "/sys/fs/cgroup"}, {Path: "/sys/fs/ext4"}, {Path: "/sys/kernel/iommu_groups"}, {Path: "/sys/kernel/mm"},
		{Path: "/sys/kernel/security/lockdown"},
		// logs of pods, and the audit log of the Kubernetes API
		{Path: paths.Data + "/log", Private: true},
	}, procTrees()...),
	Hidden: []string{paths.EmbeddedConfig},
	// Some of these files hold secrets: keys of NVMe over fabrics, passwords of iSCSI. The kernel
	// checks the permission at a read, and grants it to PID 1. The last names are raw memory of
	// devices, with unknown content, and some devices fail if all of it is read.
	Secret: regexp.MustCompile(`(?i)secret|password|chap|psk|credential|(^|_)key$|^(config|eeprom|nvmem|nvram|rom|vpd)$`),
}

// procTrees returns the parts of /proc that do not belong to a process. Excluded are files that
// reveal kernel addresses, and files that have a side effect when read.
func procTrees() []safefile.Subtree {
	names := []string{"buddyinfo", "cmdline", "consoles", "cpuinfo", "crypto", "devices", "diskstats", "filesystems", "fs/ext4", "fs/jbd2", "interrupts",
		"irq", "loadavg", "locks", "mdstat", "meminfo", "misc", "modules", "mounts", "net", "partitions", "pressure", "schedstat", "scsi", "softirqs", "stat", "swaps", "sys",
		"uptime", "version", "vmstat", "zoneinfo"}
	// Targets of /proc/mounts and /proc/net: this process has the machine's own mounts and network.
	own := fmt.Sprint(os.Getpid())
	var trees []safefile.Subtree
	for _, name := range append(names, own+"/mounts", own+"/mountinfo", own+"/net") {
		trees = append(trees, safefile.Subtree{Path: "/proc/" + name})
	}
	return trees
}

// ReadFile sends a file from an offset. If all is true, the caller may read private files, too.
func (t *Tools) ReadFile(ctx context.Context, path string, offset int64, all bool, send func(*api.ReadFileResponse) error) error {
	return t.withFile(ctx, path, func(ctx context.Context) error {
		f, err := files.Open(path, all)
		if err != nil {
			return openError(path, all, err)
		}
		defer f.Close()
		return sendFile(ctx, f, offset, send)
	})
}

// ListFiles returns the entries of a directory that the caller may see. If all is true, the caller
// may see private files, too.
func (t *Tools) ListFiles(ctx context.Context, path string, all bool) (*api.ListFilesResponse, error) {
	out := make(chan *api.ListFilesResponse, 1)
	err := t.withFile(ctx, path, func(context.Context) error {
		list, more, err := files.Entries(path, all, maxEntries)
		if err != nil {
			return openError(path, all, err)
		}
		answer := &api.ListFilesResponse{Truncated: more}
		for _, e := range list {
			one := &api.FileEntry{Name: e.Name, Mode: e.Mode.String(), Size: e.Size, Modified: timestamppb.New(e.Modified), Target: e.Target}
			answer.Entries = append(answer.Entries, one)
		}
		out <- answer
		return nil
	})
	if err != nil {
		return nil, err
	}
	return <-out, nil
}

// withFile runs a read of a file. It returns at the timeout, even if the read blocks. It also
// returns at shutdown, because an open file would block the unmount of its disk.
func (t *Tools) withFile(ctx context.Context, path string, read func(context.Context) error) error {
	if len(path) >= unix.PathMax { // the error and the audit log would repeat the path
		return status.Errorf(codes.InvalidArgument, "a path of %d bytes is too long: the limit of the kernel is %d", len(path), unix.PathMax-1)
	}
	release, ok := limits.TryAcquire(t.fileReads)
	if !ok {
		return status.Errorf(codes.ResourceExhausted, "%s: cannot read: %d files are read at present; try again when one has ended", path, maxFileReads)
	}
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer release()
		done <- panics.Do("reading files", func() error { return read(limited) })
	}()
	select {
	case err := <-done:
		return err
	case <-t.deps.Stopping:
		return errStopping()
	case <-limited.Done():
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		return status.Errorf(codes.Aborted, "%s: cannot read all of it within %v", path, readTimeout)
	}
}

// sendFile sends a file from an offset, up to maxRead bytes.
func sendFile(ctx context.Context, f *os.File, offset int64, send func(*api.ReadFileResponse) error) error {
	info, err := f.Stat()
	switch {
	case err != nil:
		return status.Errorf(codes.Internal, "%s: cannot examine: %v", f.Name(), err)
	case info.IsDir():
		return status.Error(codes.FailedPrecondition, "it is a directory; list it (`orlopctl ls`)")
	case offset < 0:
		return status.Errorf(codes.InvalidArgument, "offset: %d is before the beginning of the file", offset)
	}
	if offset > 0 {
		if _, err := f.Seek(offset, io.SeekStart); err != nil {
			return status.Errorf(codes.FailedPrecondition, "offset: this file can only be read from its beginning: %v", errors.Unwrap(err))
		}
	}
	// A driver may report that there is no data yet, and never wake the reader.
	if err := f.SetReadDeadline(time.Now().Add(readTimeout)); err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return status.Errorf(codes.Internal, "cannot bound the time to read: %v", err)
	}
	buffer := make([]byte, readChunk)
	for sent := 0; ; {
		if err := ctx.Err(); err != nil {
			return status.FromContextError(err).Err()
		}
		n, err := f.Read(buffer[:min(len(buffer), maxRead+1-sent)])
		if n > 0 {
			sent += n
			cut := sent > maxRead
			if cut {
				n--
			}
			if err := send(&api.ReadFileResponse{Chunk: buffer[:n], Truncated: cut}); err != nil || cut {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return status.Errorf(codes.FailedPrecondition, "cannot read: %v", errors.Unwrap(err))
		}
	}
}

// openError is the status of a path that cannot be opened.
func openError(path string, all bool, err error) error {
	switch {
	case errors.Is(err, safefile.ErrNotAllowed) && !all && files.Private(path):
		return status.Errorf(codes.PermissionDenied, "%s: it needs the role %s", path, pki.RoleAdmin)
	case errors.Is(err, safefile.ErrNotAllowed):
		return status.Errorf(codes.InvalidArgument, "%v; allowed: %s", err, shownTrees())
	case errors.Is(err, fs.ErrNotExist):
		return status.Error(codes.NotFound, err.Error())
	}
	return status.Error(codes.FailedPrecondition, err.Error())
}

// shownTrees returns the allow-list in one line.
func shownTrees() string {
	own := fmt.Sprintf("/proc/%d/", os.Getpid())
	var list, proc []string
	for _, t := range files.Trees {
		name, process := strings.CutPrefix(t.Path, "/proc/")
		switch {
		// not shown: targets of links that are in the list
		case strings.HasPrefix(t.Path, own), strings.HasPrefix(t.Path, paths.Run):
		case process:
			proc = append(proc, name)
		case t.Private:
			list = append(list, t.Path+" (role admin)")
		default:
			list = append(list, t.Path)
		}
	}
	return fmt.Sprintf("%s; of /proc %s", strings.Join(list, ", "), strings.Join(proc, ", "))
}
