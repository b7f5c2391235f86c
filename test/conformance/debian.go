package main

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/imager/ociarchive"
)

// notNeeded are dependencies that are omitted. Some are needed only during the installation of a
// package. For the others, another package is installed as an alternative.
var notNeeded = []string{"cdebconf", "debconf", "dpkg", "install-info", "tar", "gcc-14-base", "libdebian-installer4", "libnewt0.52", "libslang2", "libtextwrap1"}

// notRead are directories with files that no program of the images reads.
var notRead = []string{"/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/", "/usr/share/lintian/", "/usr/share/bug/"}

// distribution is the Debian suite from which the packages of the images come. The image of the
// system uses the same suite.
type distribution struct {
	archive *debian.Archive
	cache   string // directory for downloads
}

// newDistribution downloads the newest package lists. The downloads are stored below cache.
func newDistribution(cache string) (distribution, error) {
	d := distribution{debian.NewArchive(debian.Suite, filepath.Join(cache, "apt")), cache}
	return d, d.archive.Update()
}

// unpack returns the files of the newest versions of the packages and of all their dependencies. It
// runs no maintainer scripts.
func (d distribution) unpack(names ...string) (ociarchive.Layer, error) {
	all, err := d.archive.Closure(names...)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(name string) bool { return slices.Contains(notNeeded, name) })
	newest, err := d.archive.Resolve(all)
	if err != nil {
		return nil, err
	}
	archives, err := d.archive.Fetch(newest.Packages, d.cache)
	if err != nil {
		return nil, err
	}
	root := ociarchive.Layer{}
	for _, archive := range archives {
		if err := debian.Walk(archive, func(name string, h *tar.Header, content io.Reader) error { return take(root, name, h, content) }); err != nil {
			return nil, err
		}
	}
	return root, nil
}

// take adds an entry of a package to root. It ignores device files and the directories in notRead.
func take(root ociarchive.Layer, name string, h *tar.Header, content io.Reader) error {
	name = merged(name)
	if name == "/" || slices.ContainsFunc(notRead, func(dir string) bool { return strings.HasPrefix(name+"/", dir) }) {
		return nil
	}
	f := ociarchive.File{Mode: h.FileInfo().Mode()}
	switch h.Typeflag {
	case tar.TypeReg:
		var err error
		if f.Content, err = io.ReadAll(content); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	case tar.TypeDir:
	case tar.TypeSymlink:
		f.Target = h.Linkname
	case tar.TypeLink:
		f = root[merged(path.Join("/", h.Linkname))]
	default:
		return nil
	}
	root[name] = f
	return nil
}

// merged maps a path in a directory of aboveUsr to the same path below /usr. Debian's installer
// does the same. Other paths stay the same.
func merged(name string) string {
	for _, top := range aboveUsr {
		if name == top || strings.HasPrefix(name, top+"/") {
			return "/usr" + name
		}
	}
	return name
}

// aboveUsr are the directories that every image replaces by symbolic links to /usr.
var aboveUsr = []string{"/bin", "/sbin", "/lib", "/lib64"}

// base returns the files that programs expect in every system: the symbolic links of aboveUsr, the
// users and groups, and the writable directories.
func base() ociarchive.Layer {
	root := ociarchive.Layer{
		"/tmp":        {Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		"/root":       {Mode: fs.ModeDir | 0o700},
		"/run":        {Mode: fs.ModeDir | 0o755},
		"/etc/passwd": {Mode: 0o644, Content: []byte(users)},
		"/etc/group":  {Mode: 0o644, Content: []byte(groups)},
	}
	for _, top := range aboveUsr {
		root["/usr"+top] = ociarchive.File{Mode: fs.ModeDir | 0o755}
		root[top] = ociarchive.File{Mode: fs.ModePerm, Target: "usr" + top}
	}
	return root
}

// A test of the suite checks the groups of the third user. The user and the groups come from the
// Dockerfile of agnhost.
const (
	users = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n" +
		"user-defined-in-image:x:1000:1000::/:/bin/sh\n"
	groups = "root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"
)

// together merges trees. If several trees have the same path, the entry of the last tree is used.
func together(trees ...ociarchive.Layer) ociarchive.Layer {
	all := ociarchive.Layer{}
	for _, tree := range trees {
		maps.Copy(all, tree)
	}
	return all
}

// busybox returns busybox with a symbolic link for each of its applets. It runs the program to list
// the applets.
func (d distribution) busybox(ctx context.Context) (ociarchive.Layer, error) {
	root, err := d.unpack("busybox-static")
	if err != nil {
		return nil, err
	}
	program := filepath.Join(d.cache, "busybox")
	if err := os.WriteFile(program, root["/usr/bin/busybox"].Content, 0o755); err != nil {
		return nil, fmt.Errorf("busybox: %w", err)
	}
	applets, err := exec.CommandContext(ctx, program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox: cannot list its applets: %w", err)
	}
	for _, applet := range strings.Fields(string(applets)) {
		if applet != "busybox" {
			root["/usr/bin/"+applet] = ociarchive.File{Mode: fs.ModePerm, Target: "busybox"}
		}
	}
	return root, nil
}
