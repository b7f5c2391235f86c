package ociarchive

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// written returns the archive of an image.
func written(t *testing.T, i Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, i); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestWrite writes an image, and reads the archive like a program that imports the image.
func TestWrite(t *testing.T) {
	image := Program("example.test/one:1", "one", []byte("program"))
	image.Created = time.Unix(1_700_000_000, 0)
	files := image.Layers[0]
	files["/usr"] = File{Mode: fs.ModeDir | 0o755}
	files["/usr/su"] = File{Mode: fs.ModeSetuid | 0o755, Content: []byte("as root")}
	files["/usr/first"] = File{Target: "su"}
	again := image
	again.Created = image.Created.In(time.FixedZone("far", 9*3600))
	a := written(t, image)
	if !bytes.Equal(a, written(t, again)) {
		t.Error("two archives of the same image differ")
	}

	read := open(t, a)
	if got := read.name; got != "example.test/one:1" {
		t.Errorf("containerd would call the image %q", got)
	}
	c := read.config
	if want := "application/vnd.oci.image.config.v1+json"; read.configType != want {
		t.Errorf("the configuration of an image has the type %s, want %s", read.configType, want)
	}
	if c.OS != "linux" || c.Architecture != "amd64" || fmt.Sprint(c.Config.Entrypoint) != "[/one]" || len(c.RootFS.DiffIDs) != 1 {
		t.Errorf("image configuration is %+v", c)
	}
	want := "one 100755 0 program|usr/ 40755 0 |usr/first 120000 0 su|usr/su 104755 0 as root"
	if got := strings.Join(read.files, "|"); got != want {
		t.Errorf("files are %s\nwant      %s", got, want)
	}
}

// TestArtifact checks that the media type of the configuration distinguishes an artifact from an
// image, and that Digest returns the digest in the archive.
func TestArtifact(t *testing.T) {
	const flux = "application/vnd.cncf.flux.config.v1+json"
	a := Image{Name: "example.test/addon:1", ConfigType: flux, Layers: []Layer{{"/deploy.yaml": {Mode: 0o644, Content: []byte("a: 1")}}}}
	digest, err := a.Digest()
	must(t, err)
	read := open(t, written(t, a))
	if read.configType != flux || read.digest != digest || strings.Join(read.files, "|") != "deploy.yaml 100644 0 a: 1" {
		t.Errorf("the archive has %+v; Digest returns %s", read, digest)
	}
}

// seen is the content of an archive.
type seen struct {
	name       string
	digest     string
	configType string
	config     *v1.ConfigFile
	files      []string // name, mode in the form of stat(2), owner, content or target
}

func open(t *testing.T, archive []byte) seen {
	t.Helper()
	dir := t.TempDir()
	each(t, bytes.NewReader(archive), func(h *tar.Header, content []byte) {
		if sum, isBlob := strings.CutPrefix(h.Name, "blobs/sha256/"); isBlob && sum != fmt.Sprintf("%x", sha256.Sum256(content)) {
			t.Errorf("%s: the content does not have the digest in the name", h.Name)
		}
		file := filepath.Join(dir, h.Name)
		must(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must(t, os.WriteFile(file, content, 0o600))
	})
	index, err := layout.ImageIndexFromPath(dir)
	must(t, err)
	m, err := index.IndexManifest()
	must(t, err)
	image, err := index.Image(m.Manifests[0].Digest)
	must(t, err)
	s := seen{name: m.Manifests[0].Annotations["io.containerd.image.name"], digest: m.Manifests[0].Digest.String()}
	manifest, err := image.Manifest()
	must(t, err)
	s.configType = string(manifest.Config.MediaType)
	s.config, err = image.ConfigFile()
	must(t, err)
	layers, err := image.Layers()
	must(t, err)
	digest, err := layers[0].Digest()
	must(t, err)
	if len(layers) != 1 || digest != s.config.RootFS.DiffIDs[0] {
		t.Errorf("%d layers, the first with digest %s; the configuration has the layers %v", len(layers), digest, s.config.RootFS.DiffIDs)
	}
	r, err := layers[0].Compressed() // the blob without decompression
	must(t, err)
	each(t, r, func(h *tar.Header, content []byte) {
		kind := map[byte]int64{tar.TypeReg: 0o100000, tar.TypeDir: 0o40000, tar.TypeSymlink: 0o120000}[h.Typeflag]
		s.files = append(s.files, fmt.Sprintf("%s %o %d %s%s", h.Name, kind|h.Mode, h.Uid, content, h.Linkname))
	})
	return s
}

func each(t *testing.T, r io.Reader, visit func(*tar.Header, []byte)) {
	t.Helper()
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		content, err := io.ReadAll(files)
		must(t, err)
		visit(h, content)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
