package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/orlop-os/orlop/imager/ociarchive"
	"github.com/orlop-os/orlop/imager/pause"
)

// tools are the Debian packages with the commands that the suite runs in its pods, in addition to
// busybox. The Dockerfile of agnhost has the same commands.
var tools = []string{"curl", "bind9-dnsutils", "netcat-openbsd", "hostname", "libc-bin", "iproute2"}

// nginxConfig makes nginx serve a directory on port 80. nginx writes its log to the output of the
// container, which `kubectl logs` shows.
const nginxConfig = `user nobody nogroup;
daemon off;
pid /run/nginx.pid;
error_log /dev/stderr;
events {}
http {
	include mime.types;
	access_log /dev/stdout;
	server {
		listen 80;
		listen [::]:80;
		root /usr/share/nginx/html;
	}
}
`

// named returns the images of the list for which there is a recipe, with their full names. The list
// can contain several versions of an image. Images from a registry with a password are omitted,
// because a test expects that a pull of such an image fails.
func named(list []string, recipes map[string]ociarchive.Image) []ociarchive.Image {
	var all []ociarchive.Image
	for _, name := range list {
		repository := name[:max(0, strings.LastIndexByte(name, ':'))]
		parent, base := path.Split(repository)
		image, made := recipes[base]
		if made && (path.Base(parent) == "e2e-test-images" || strings.Count(repository, "/") == 1) {
			image.Name = name
			all = append(all, image)
		}
	}
	return all
}

// systems are the layers of the images that come from Debian. Each field includes base.
type systems struct {
	shell     ociarchive.Layer // bash, and the commands of busybox
	tools     ociarchive.Layer // shell, and the commands of agnhost
	webserver ociarchive.Layer // shell, and nginx
}

func newSystems(ctx context.Context, cache string) (systems, error) {
	from, err := newDistribution(cache)
	if err != nil {
		return systems{}, err
	}
	small, err := from.busybox(ctx)
	if err != nil {
		return systems{}, err
	}
	// Debian installs libc6 and libtinfo6 before bash, so bash lists them as pre-dependencies only.
	bash, err := from.unpack("bash", "libc6", "libtinfo6")
	if err != nil {
		return systems{}, err
	}
	// The command sh is bash, for two reasons. The shell of Debian's busybox prefers its applets to
	// programs with the same name, for example an nc without UDP. It also drops variables whose
	// names are not valid in a shell, and some tests use such variables. In the image busybox,
	// /bin/sh remains the shell of busybox, because a test expects its error message for a file
	// that cannot be written.
	bash["/usr/local/bin/sh"] = ociarchive.File{Mode: fs.ModePerm, Target: "/usr/bin/bash"}
	large, err := from.unpack(tools...)
	if err != nil {
		return systems{}, err
	}
	large["/usr/bin/sh"] = ociarchive.File{Mode: fs.ModePerm, Target: "bash"}
	// Debian's alternatives create this link, too.
	large["/usr/bin/nc"] = ociarchive.File{Mode: fs.ModePerm, Target: "nc.openbsd"}
	webserver, err := from.unpack("nginx")
	if err != nil {
		return systems{}, err
	}
	pages := ociarchive.Layer{"/usr/share/nginx/html/index.html": text("<title>nginx</title>\n"), "/etc/nginx/nginx.conf": text(nginxConfig)}
	shell := together(base(), small, bash)
	return systems{shell: shell, tools: together(shell, large), webserver: together(shell, webserver, pages)}, nil
}

// recipes returns the images that the conformance tests of the suite use. The key is the last part
// of the image's name, without the version.
func recipes(ctx context.Context, programs, cache string) (map[string]ociarchive.Image, error) {
	system, err := newSystems(ctx, cache)
	if err != nil {
		return nil, err
	}
	sources, err := moduleDir(ctx, "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	pauses, err := pause.Compile(cache)
	if err != nil {
		return nil, err
	}
	from := reader{programs: programs, sources: filepath.Join(sources, "test", "images")}
	agnhost := []ociarchive.Layer{system.tools, {
		"/agnhost": from.program("agnhost"), "/agnhost-2": {Mode: fs.ModePerm, Target: "agnhost"}, "/uploads": {Mode: fs.ModeDir | 0o755},
		"/localhost.crt": from.source("agnhost/porter/localhost.crt"), "/localhost.key": from.source("agnhost/porter/localhost.key"),
	}}
	animal := func(name string) ociarchive.Image {
		picture := ociarchive.Layer{
			"/" + name + ".jpg": from.source(name + "/html/" + name + ".jpg"), "/data.json": from.source(name + "/html/data.json"),
			// A test of image volumes reads this file and expects the name Alpine Linux, because
			// the original image is made from Alpine Linux.
			"/etc/os-release": text("NAME=\"not Alpine Linux\"\n"),
		}
		return ociarchive.Image{Layers: append(slices.Clone(agnhost), picture), Config: v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}}}
	}
	nnp := from.program("nnp")
	nnp.Mode |= fs.ModeSetuid
	serve, shellFirst := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}, v1.Config{Cmd: []string{"sh"}}
	serveAs := serve
	serveAs.User = "1234"
	only := func(file, program string) ociarchive.Image {
		return ociarchive.Image{Layers: []ociarchive.Layer{{file: from.program(program)}}, Config: v1.Config{Entrypoint: []string{file}}}
	}
	return map[string]ociarchive.Image{
		"agnhost":           {Layers: agnhost, Config: serve},
		"nonroot":           {Layers: agnhost, Config: serveAs},
		"nautilus":          animal("nautilus"),
		"kitten":            animal("kitten"),
		"glibc-dns-testing": {Layers: []ociarchive.Layer{system.tools}, Config: shellFirst},
		"nonewprivs":        {Layers: []ociarchive.Layer{system.tools, {"/usr/local/bin/nnp": nnp}}, Config: v1.Config{Cmd: []string{"/usr/local/bin/nnp"}}},
		"busybox":           {Layers: []ociarchive.Layer{system.shell}, Config: shellFirst},
		"nginx":             {Layers: []ociarchive.Layer{system.webserver}, Config: v1.Config{Cmd: []string{"nginx"}}},
		"sample-apiserver":  only("/sample-apiserver", "sample-apiserver"),
		"etcd":              only("/usr/local/bin/etcd", "etcd"),
		"pause":             pause.Image(pauses, time.Time{}),
	}, from.err
}

// reader reads files for images. It stores the first error, so the caller checks for errors once.
type reader struct {
	programs, sources string
	err               error
}

func (r *reader) program(name string) ociarchive.File {
	return r.file(filepath.Join(r.programs, name), 0o755)
}
func (r *reader) source(name string) ociarchive.File {
	return r.file(filepath.Join(r.sources, name), 0o644)
}

func (r *reader) file(name string, mode fs.FileMode) ociarchive.File {
	content, err := os.ReadFile(name)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("images: cannot read: %w", err)
	}
	return ociarchive.File{Mode: mode, Content: content}
}

func text(content string) ociarchive.File {
	return ociarchive.File{Mode: 0o644, Content: []byte(content)}
}

// writeImages writes one archive with the images of the list whose names match wanted, and with the
// image of the registry that serves them.
func writeImages(ctx context.Context, list []string, wanted, programs, cache, file string) error {
	matching, err := regexp.Compile(wanted)
	if err != nil {
		return fmt.Errorf("-images: cannot use: %w", err)
	}
	known, err := recipes(ctx, programs, cache)
	if err != nil {
		return err
	}
	all := slices.DeleteFunc(named(list, known), func(i ociarchive.Image) bool { return !matching.MatchString(i.Name) })
	if len(all) == 0 {
		return fmt.Errorf("-images %q: no image of the suite has such a name", wanted)
	}
	registry, err := mirror(filepath.Join(programs, registryProgram), slices.DeleteFunc(slices.Clone(all), func(i ociarchive.Image) bool { return !isPulled(i.Name) })...)
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("images: %w", err)
	}
	return errors.Join(ociarchive.Write(out, append(all, registry)...), out.Close())
}
