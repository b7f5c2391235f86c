package podlogd

import (
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limits of the directory of logs. A kubelet usually has at most some hundred pods.
const (
	maxContainers = 2048
	maxFiles      = 64 // files of a container
	// maxEntries is the limit of entries read from one directory. It exceeds maxContainers and
	// maxFiles, because a directory can have other entries, for example files that the kubelet is
	// compressing.
	maxEntries = 4 * maxContainers
)

// Container identifies a container of a pod.
type Container struct{ Namespace, Pod, UID, Name string }

// dir returns the directory of the container, relative to the directory of logs.
func (c Container) dir() string { return c.podDir() + "/" + c.Name }

// podDir returns the directory of the pod, relative to the directory of logs.
func (c Container) podDir() string { return c.Namespace + "_" + c.Pod + "_" + c.UID }

var (
	podName       = regexp.MustCompile(`^([a-z0-9-]{1,63})_([a-z0-9.-]{1,253})_([A-Za-z0-9-]{1,64})$`)
	containerName = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	fileName      = regexp.MustCompile(`^([0-9]{1,9})\.log(?:\.([0-9]{8}-[0-9]{6})(\.gz)?)?$`)
)

// listing is the result of containers.
type listing struct {
	containers []Container // sorted by directory
	// more is true if there are more than maxContainers, or if the directory of logs has more than
	// maxEntries entries.
	more bool
	// unreadable has the errors of the pods with an unreadable directory, by the directory of the
	// pod. containers lacks the containers of these pods.
	unreadable map[string]error
}

// containers lists the containers with logs in the selected namespaces. It ignores symbolic links.
// It returns an error if the directory of logs is unreadable.
func containers(root *os.Root, selects func(namespace string) bool) (l listing, err error) {
	pods, more, err := entries(root, ".")
	if err != nil {
		return l, err
	}
	l.more, l.unreadable = more, map[string]error{}
	for _, pod := range pods {
		m := podName.FindStringSubmatch(pod.Name())
		if m == nil || !pod.IsDir() || !selects(m[1]) {
			continue
		}
		of, _, err := entries(root, pod.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // the pod has just been deleted
		}
		if err != nil {
			l.unreadable[pod.Name()] = err
			continue
		}
		for _, c := range of {
			if !c.IsDir() || !containerName.MatchString(c.Name()) {
				continue
			}
			if len(l.containers) == maxContainers {
				l.more = true
				return l, nil
			}
			l.containers = append(l.containers, Container{m[1], m[2], m[3], c.Name()})
		}
	}
	return l, nil
}

// entries returns at most four times maxContainers entries of a directory, sorted by name. more is
// true if the directory may have further entries.
func entries(root *os.Root, name string) (list []fs.DirEntry, more bool, err error) {
	d, err := root.Open(name)
	if err != nil {
		return nil, false, err
	}
	defer d.Close()
	list, err = d.ReadDir(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, len(list) == maxEntries, nil
}

// logFile is a log file of a container.
type logFile struct {
	name    string
	restart int    // restart count of the container, from 0
	rotated string // time of the rotation; empty for the file that containerd writes now
	packed  bool
}

// files returns the log files of a container, the oldest first, by restart count and then by time
// of rotation. While the kubelet compresses a file, the file exists twice, and files returns the
// uncompressed file. Symbolic and hard links are ignored, because a pod with a volume in the
// directory of logs could create such links.
func files(root *os.Root, dir string) (list []logFile, err error) {
	all, _, err := entries(root, dir)
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		m := fileName.FindStringSubmatch(e.Name())
		if m == nil || !e.Type().IsRegular() {
			continue
		}
		info, err := root.Lstat(dir + "/" + e.Name())
		if err != nil {
			return nil, err
		}
		restart, err := strconv.Atoi(m[1])
		if err != nil || !single(info) {
			continue
		}
		f := logFile{name: e.Name(), restart: restart, rotated: m[2], packed: m[3] != ""}
		twin := func(other logFile) bool { return other.restart == f.restart && other.rotated == f.rotated }
		if i := slices.IndexFunc(list, twin); i >= 0 {
			if !f.packed {
				list[i] = f
			}
			continue
		}
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b logFile) int {
		return cmp.Or(cmp.Compare(a.restart, b.restart), cmp.Compare(cmp.Or(a.rotated, "~"), cmp.Or(b.rotated, "~")))
	})
	return list[max(0, len(list)-maxFiles):], nil
}

// single reports whether a file is a regular file without further hard links.
func single(info fs.FileInfo) bool {
	return info.Mode().IsRegular() && info.Sys().(*syscall.Stat_t).Nlink == 1
}

// open opens a regular file that is no symbolic link and has no further hard links. os.Root follows
// symbolic links within the directory, so open compares the opened file with the result of Lstat.
func open(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	var named fs.FileInfo
	if err == nil {
		named, err = root.Lstat(name)
	}
	if err == nil && (!os.SameFile(info, named) || !single(info)) {
		err = fmt.Errorf("%s: %w", name, errNoFile)
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// errNoFile means that a name is a link or no regular file, or that the file was renamed just now.
var errNoFile = errors.New("is no regular file with a single name")

// content returns a reader of the uncompressed content of an open file.
func content(f *os.File, packed bool) (io.Reader, error) {
	if !packed {
		return f, nil
	}
	return gzip.NewReader(f)
}

// firstStamp returns the time at the beginning of a file (stamp). It returns "" if the file has no
// line yet or is damaged.
func firstStamp(root *os.Root, name string, packed bool) (string, error) {
	f, _, err := open(root, name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return stampOf(f, packed), nil
}

// stampOf returns the time at the beginning of an open file (stamp). It returns "" if the file has
// no line yet or is damaged.
func stampOf(f *os.File, packed bool) string {
	text, err := content(f, packed)
	if err != nil {
		return "" // a power cut damaged the file
	}
	start := make([]byte, 64)
	n, err := io.ReadFull(text, start)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return ""
	}
	return stamp(start[:n])
}
