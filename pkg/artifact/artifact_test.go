package artifact

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
)

// entry is an entry of a tar archive: a regular file, unless kind is set.
type entry struct {
	name, content string
	kind          byte
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(e.content))}
		switch e.kind {
		case 0:
		case tar.TypeXGlobalHeader:
			h = &tar.Header{Typeflag: e.kind, PAXRecords: map[string]string{"comment": e.name}}
		default:
			h.Typeflag, h.Linkname, h.Size = e.kind, "/etc/passwd", 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, e.content); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// layer is a layer of an artifact, with its name and its content.
type layer struct {
	name    string
	content []byte
}

// unpack returns the files of the layers as "name=content". The parameter most is the limit of
// their total size in bytes.
func unpack(all []layer, most int64) ([]string, error) {
	var described []Layer
	for i, l := range all {
		described = append(described, Layer{Blob{fmt.Sprint(i), int64(len(l.content))}, l.name})
	}
	found, err := texts(described, func(l Layer) ([]byte, error) {
		var i int
		fmt.Sscan(l.SHA256, &i)
		return all[i].content, nil
	}, most)
	var out []string
	for _, f := range found {
		out = append(out, f.Name+"="+f.Content)
	}
	return out, err
}

func TestTexts(t *testing.T) {
	archive := tarOf(t, entry{"pax_global_header", "", tar.TypeXGlobalHeader}, entry{"./deploy/", "", tar.TypeDir},
		entry{"./deploy/b.yaml", "b: 1", 0}, entry{"deploy/README.md", "# no", 0}, entry{"deploy/a.YML", "a: 1", 0}, entry{"c.json", "{}", 0})
	want := []string{"deploy/b.yaml=b: 1", "deploy/a.YML=a: 1", "c.json={}"}
	for what, c := range map[string]struct {
		layers []layer
		want   []string
	}{
		"a compressed archive, as flux pushes it":        {[]layer{{"", zipped(t, archive)}}, want},
		"an archive without compression, as in an image": {[]layer{{"", archive}}, want},
		"a directory, as oras pushes it":                 {[]layer{{"deploy", zipped(t, archive)}}, want},
		"files, as oras pushes them":                     {[]layer{{"web.yaml", []byte("w: 1")}, {"LICENSE", []byte("no")}}, []string{"web.yaml=w: 1"}},
		"a layer without a name":                         {[]layer{{"", []byte("w: 1")}, {"", zipped(t, []byte("z: 1"))}}, []string{"layer 1=w: 1", "layer 2=z: 1"}},
		"a text longer than the header of an archive":    {[]layer{{"", []byte(strings.Repeat("#", 2000))}}, []string{"layer 1=" + strings.Repeat("#", 2000)}},
		"a text of the maximum size":                     {[]layer{{"", []byte(strings.Repeat("#", 1<<16))}}, []string{"layer 1=" + strings.Repeat("#", 1<<16)}},
	} {
		got, err := unpack(c.layers, 1<<16)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

// TestHostile checks hostile archives: only regular files are read, and archive bombs are rejected.
func TestHostile(t *testing.T) {
	big := strings.Repeat("\n", 1<<16)
	many := make([]entry, MaxFiles+1)
	for i := range many {
		many[i] = entry{fmt.Sprintf("%d.md", i), "", 0}
	}
	for what, c := range map[string]struct {
		layers []layer
		want   string
	}{
		"a path that leads upwards":             {[]layer{{"", tarOf(t, entry{"a/../../b.yaml", "b", 0})}}, "has a path outside of the archive"},
		"an absolute path":                      {[]layer{{"", tarOf(t, entry{"/etc/b.yaml", "b", 0})}}, "has a path outside of the archive"},
		"a symbolic link":                       {[]layer{{"", tarOf(t, entry{"b.yaml", "", tar.TypeSymlink})}}, "is a link or a device"},
		"a hard link":                           {[]layer{{"", tarOf(t, entry{"b.yaml", "", tar.TypeLink})}}, "is a link or a device"},
		"a device":                              {[]layer{{"", tarOf(t, entry{"b.yaml", "", tar.TypeChar})}}, "is a link or a device"},
		"a pipe":                                {[]layer{{"", tarOf(t, entry{"b.yaml", "", tar.TypeFifo})}}, "is a link or a device"},
		"a file name with a control sequence":   {[]layer{{"", tarOf(t, entry{"\x1b[31m.yaml", "b", 0})}}, `"\x1b[31m.yaml": is not a valid file name`},
		"a layer title with a control sequence": {[]layer{{"\x1b[31m.yaml", []byte("b")}}, `"\x1b[31m.yaml": is not a valid file name`},
		"a name twice in an archive":            {[]layer{{"", tarOf(t, entry{"b.yaml", "b", 0}, entry{"./b.yaml", "b", 0})}}, "occurs twice"},
		"a name in two layers":                  {[]layer{{"b.yaml", []byte("b")}, {"b.yaml", []byte("b")}}, "occurs twice"},
		"a whiteout":                            {[]layer{{"", tarOf(t, entry{".wh.b.yaml", "", 0})}}, "is a whiteout"},
		"a kustomization":                       {[]layer{{"", tarOf(t, entry{"x/kustomization.yaml", "b", 0})}}, "kustomize build"},
		"a chart":                               {[]layer{{"", tarOf(t, entry{"x/Chart.yaml", "b", 0})}}, "helm template"},
		"a text with a zero byte":               {[]layer{{"", []byte("a\x00b")}}, "neither a text nor an archive"},
		"a text that is not UTF-8":              {[]layer{{"", []byte("a\xffb")}}, "neither a text nor an archive"},
		"only zeros":                            {[]layer{{"", make([]byte, 1024)}}, "neither a text nor an archive"},
		"only files of other types": {[]layer{{"README.md", []byte("b")}, {"", tarOf(t, entry{"README.md", "b", 0})}},
			"holds no file of YAML or JSON"},
		"a text that is too long":              {[]layer{{"", []byte(big + "\n")}}, "more than 65536 bytes"},
		"two texts that are too long together": {[]layer{{"a.yaml", []byte(big[1:])}, {"b.yaml", []byte("\n\n")}}, "more than 65536 bytes"},
		"a compressed text that is too long":   {[]layer{{"", zipped(t, bytes.Repeat([]byte("\n"), 64<<20))}}, "more than 65536 bytes"},
		"a manifest in an archive bomb":        {[]layer{{"", zipped(t, tarOf(t, entry{"b.yaml", strings.Repeat("#", 8<<20), 0}))}}, "more than 65536 bytes"},
		"a skipped file in an archive bomb":    {[]layer{{"", zipped(t, tarOf(t, entry{"b.md", strings.Repeat("#", 8<<20), 0}))}}, "more than 65536 bytes"},
		"a sparse file":                        {[]layer{{"", sparse(t, "b.yaml", 1<<40)}}, "more than 65536 bytes"},
		"too many files":                       {[]layer{{"", tarOf(t, many...)}}, "more than 4096 files"},
		"half a tar":                           {[]layer{{"", tarOf(t, entry{"b.yaml", strings.Repeat("#", 600), 0})[:600]}}, "is truncated"},
		"half a gzip":                          {[]layer{{"", zipped(t, []byte(big))[:30]}}, "is truncated"},
		"an invalid gzip stream":               {[]layer{{"", []byte("\x1f\x8bxxxxxxxxxxxxxx")}}, "gzip"},
		"zstd":                                 {[]layer{{"", []byte("\x28\xb5\x2f\xfdxx")}}, "compressed by zstd"},
	} {
		most := int64(1 << 16)
		if what == "too many files" {
			most = MaxUnpacked
		}
		got, err := unpack(c.layers, most)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.100q, %v; want %q", what, got, err, c.want)
		}
	}
	gone := errors.New("gone")
	if _, err := Texts([]Layer{{}}, func(Layer) ([]byte, error) { return nil, gone }); !errors.Is(err, gone) {
		t.Errorf("error for a layer that cannot be read: %v", err)
	}
}

// sparse returns a tar archive with one file that consists of a hole of the given size (GNU tar's
// sparse format 1.0, with pax(1) records).
func sparse(t *testing.T, name string, size int64) []byte {
	t.Helper()
	const block = 512
	holes := make([]byte, block)
	copy(holes, "0\n") // The sparse map lists zero data segments.
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	// The tar writer rejects these records. So the test writes records with other names of the same
	// length, and replaces the names afterwards.
	err := w.WriteHeader(&tar.Header{Name: "x", Size: block, Mode: 0o644, Format: tar.FormatPAX, PAXRecords: map[string]string{
		"XNU.sparse.major": "1", "XNU.sparse.minor": "0", "XNU.sparse.name": name, "XNU.sparse.realsize": fmt.Sprint(size),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(holes); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(buf.Bytes(), []byte("XNU.sparse"), []byte("GNU.sparse"))
}

// manifest returns a manifest with these layers.
func manifest(layers ...[]byte) []byte {
	var all []string
	for _, l := range layers {
		all = append(all, fmt.Sprintf(`{"mediaType":"application/yaml","digest":%q,"size":%d,"annotations":{"org.opencontainers.image.title":"%d.yaml"}}`,
			digest.FromBytes(l), len(l), len(all)))
	}
	return fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{},"layers":[%s]}`, strings.Join(all, ","))
}

func TestLayers(t *testing.T) {
	got, err := Layers(manifest([]byte("a"), []byte("bc")))
	want := []Layer{{Blob{digest.FromString("a").Encoded(), 1}, "0.yaml"}, {Blob{digest.FromString("bc").Encoded(), 2}, "1.yaml"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	sum := digest.FromString("a").String()
	for text, want := range map[string]string{
		`x`:                              "cannot be read",
		`{}`:                             "0 layers",
		`{"layers":[],"manifests":[{}]}`: "index of several",
		`{"layers":[{"digest":"sha256:00","size":1}]}`:                                                                         "not a SHA-256",
		`{"layers":[{"digest":"sha512:` + strings.Repeat("0", 128) + `"}]}`:                                                    "not a SHA-256",
		`{"layers":[{"digest":"` + sum + `","size":-1}]}`:                                                                      "more than 16 MiB",
		`{"layers":[{"digest":"` + sum + `","size":16777216},{"digest":"` + sum + `","size":1}]}`:                              "more than 16 MiB",
		`{"layers":[{"digest":"` + sum + `","size":9223372036854775807},{"digest":"` + sum + `","size":9223372036854775807}]}`: "more than 16 MiB",
		`{"layers":[` + strings.Repeat(`{"digest":"`+sum+`"},`, MaxLayers) + `{"digest":"` + sum + `"}]}`:                      "257 layers",
		`{"layers":[{"digest":"` + sum + `","size":1}],"annotations":{"a":"` + strings.Repeat("a", MaxManifest) + `"}}`:        "more than 1 MiB",
	} {
		if got, err := Layers([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, %v", text, got, err)
		}
	}
}

// FuzzTexts checks that Layers and texts return only valid results within the limits for any
// artifact. The names of the texts must be unique and lead to no other directory.
func FuzzTexts(f *testing.F) {
	const most = 1 << 16
	archive := tarOf(f, entry{"a/b.yaml", "b: 1", 0}, entry{"c.json", "{}", 0})
	for _, content := range [][]byte{archive, zipped(f, archive), []byte("a: 1"), zipped(f, bytes.Repeat([]byte("#"), most+1)), tarOf(f, entry{"l.yaml", "", tar.TypeSymlink})} {
		f.Add(manifest(content), content)
		f.Add(manifest(content, content), content)
	}
	f.Fuzz(func(t *testing.T, manifest, content []byte) {
		layers, err := Layers(manifest)
		if err != nil {
			return
		}
		size := int64(0)
		for _, l := range layers {
			if size += l.Size; l.Size < 0 || size > MaxSize || len(l.SHA256) != 64 || len(layers) > MaxLayers {
				t.Errorf("accepted: %+v", layers)
			}
		}
		found, err := texts(layers, func(Layer) ([]byte, error) { return content, nil }, most)
		if err != nil {
			return
		}
		names, length := map[string]bool{}, 0
		for _, x := range found {
			if length += len(x.Content); length > most || !utf8.ValidString(x.Content) || names[x.Name] {
				t.Errorf("accepted: %.100q with %d bytes", x.Name, length)
			}
			if archived := bytes.HasPrefix(content, []byte{0x1f, 0x8b}) || len(content) > 262 && string(content[257:262]) == "ustar"; archived && !filepath.IsLocal(x.Name) && !slices.ContainsFunc(layers, func(l Layer) bool { return l.Name == x.Name }) {
				t.Errorf("the name %q leads to another directory", x.Name)
			}
			names[x.Name] = true
		}
	})
}
