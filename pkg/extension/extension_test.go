package extension

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/bundle"
)

const digestA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// sample returns a valid statement with every field.
func sample() Statement {
	return Statement{
		Name: "gvisor", Version: "20260905", System: "0.2.0", Profile: "qemu", Kernel: "6.12.1-cloud",
		Root:  strings.Repeat("ab", 32) + ",10,10,",
		Image: bundle.Part{SHA256: digestA, Size: 11 * 4096},
		Files: []File{
			{Path: "/usr/bin/containerd-shim-runsc-v1", Size: 3, SHA256: digestA},
			{Path: "/usr/bin/runsc", Size: 3, SHA256: digestA},
			{Path: "/usr/bin/runsc-link", Target: "runsc"},
			{Path: "/usr/lib/modules/6.12.1-cloud/extensions/gvisor/modules.dep", SHA256: digestA},
			{Path: "/usr/share/cdi/gpu.json", Size: 3, SHA256: digestA},
			{Path: "/usr/share/orlop/extensions/gvisor/runsc.toml", Size: 3, SHA256: digestA},
		},
		Load:     []string{"nfs", "dm-thin-pool"},
		Runtimes: []Runtime{{Handler: "runsc", Type: "io.containerd.runsc.v1", Config: "/usr/share/orlop/extensions/gvisor/runsc.toml"}},
		Services: []Service{{Name: "agent", Args: []string{"/usr/bin/runsc", "wait"}, User: 200, Capabilities: []string{"NET_ADMIN"}, Memory: 64 << 20, Processes: 8, State: true}},
	}
}

// TestCheck changes one field of a valid statement, and checks the error.
func TestCheck(t *testing.T) {
	if err := sample().Check(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want string
		do   func(*Statement)
	}{
		{`"../x" is not a name`, func(s *Statement) { s.Name = "../x" }},
		{`"" is not a version of the system`, func(s *Statement) { s.System = "" }},
		{`"a/b" is not a kernel release`, func(s *Statement) { s.Kernel = "a/b" }},
		{"4 fields separated by commas expected", func(s *Statement) { s.Root = "x" }},
		{"of its image is invalid", func(s *Statement) { s.Image.SHA256 = "x" }},
		{"its image has 2048 MiB, and at most 1024 MiB are permitted", func(s *Statement) { s.Image.Size = 2 << 30 }},
		{"begins after the end of its image", func(s *Statement) { s.Image.Size = 4096 }},
		{"it has 0 files", func(s *Statement) { s.Files = nil }},
		{"it has 4097 files", func(s *Statement) { s.Files = make([]File, MaxFiles+1) }},
		{"/etc/passwd: is outside of the permitted directories", func(s *Statement) { s.Files[0].Path = "/etc/passwd" }},
		{"/usr/lib/modules/6.12.1-cloud/modules.dep: is outside", func(s *Statement) { s.Files[3].Path = "/usr/lib/modules/6.12.1-cloud/modules.dep" }},
		{"/usr/share/orlop/extensions/other/x: is outside", func(s *Statement) { s.Files[5].Path = "/usr/share/orlop/extensions/other/x" }},
		{`"/usr/bin/../../etc/passwd" is not an absolute path`, func(s *Statement) { s.Files[0].Path = "/usr/bin/../../etc/passwd" }},
		{"is not an absolute path", func(s *Statement) { s.Files[0].Path = "/usr/bin/a:b" }},
		{"/usr/bin/runsc: occurs twice, or the paths are not sorted", func(s *Statement) { s.Files[2] = s.Files[1] }},
		{"/usr/bin/containerd-shim-runsc-v1: occurs twice", func(s *Statement) { slices.Reverse(s.Files[:2]) }},
		{"/usr/bin/runsc: is a file and a directory", func(s *Statement) { s.Files[2] = File{Path: "/usr/bin/runsc/x", SHA256: digestA} }},
		{"/usr/bin/runsc-link: is a link and a file", func(s *Statement) { s.Files[2].Size = 1 }},
		{"/usr/bin/runsc: digest", func(s *Statement) { s.Files[1].SHA256 = "" }},
		{`"a b" is not the name of a kernel module`, func(s *Statement) { s.Load[0] = "a b" }},
		{"it loads 129 modules", func(s *Statement) { s.Load = slices.Repeat([]string{"nfs"}, 129) }},
		{`"runc" is not the name of another runtime handler`, func(s *Statement) { s.Runtimes[0].Handler = "runc" }},
		{"runtime handler runsc occurs twice", func(s *Statement) { s.Runtimes = append(s.Runtimes, s.Runtimes[0]) }},
		{"/usr/bin/containerd-shim-kata-v2 is not in the extension", func(s *Statement) { s.Runtimes[0].Type = "io.containerd.kata.v2" }},
		{`"/bin/sh" is not a type`, func(s *Statement) { s.Runtimes[0].Type = "/bin/sh" }},
		{"/x is not in the extension", func(s *Statement) { s.Runtimes[0].Config = "/x" }},
		{"service agent: its program is not in the extension", func(s *Statement) { s.Services[0].Args[0] = "/usr/bin/machined" }},
		{"service agent: user 100: 0, or 200 to 299 expected", func(s *Statement) { s.Services[0].User = 100 }},
		{"service agent: user 0 has all capabilities", func(s *Statement) { s.Services[0].User = 0 }},
		{"service agent: 0 bytes of memory", func(s *Statement) { s.Services[0].Memory = 0 }},
		{"service agent: 0 processes", func(s *Statement) { s.Services[0].Processes = 0 }},
		{`"SYS_MODULE" is not a capability`, func(s *Statement) { s.Services[0].Capabilities[0] = "SYS_MODULE" }},
		{"service agent occurs twice", func(s *Statement) { s.Services = append(s.Services, s.Services[0]) }},
		{`"a/b" is not the name of a service`, func(s *Statement) { s.Services[0].Name = "a/b" }},
	} {
		s := sample()
		c.do(&s)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.want, err)
		}
		if _, err := Seal(s, newKey(t)); err == nil {
			t.Errorf("%s: Seal accepts the invalid statement", c.want)
		}
	}
}

func newKey(t *testing.T) bundle.Key {
	t.Helper()
	key, err := bundle.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func trustOf(t *testing.T, threshold int, keys ...bundle.Key) bundle.Trust {
	t.Helper()
	var text []byte
	for _, k := range keys {
		one, err := k.PublicPEM()
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, one...)
	}
	all, err := bundle.ParseTrust(text)
	if err == nil {
		all, err = all.WithThreshold(threshold)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestVerify checks which signatures Verify requires.
func TestVerify(t *testing.T) {
	one, two, site := newKey(t), newKey(t), newKey(t)
	release := trustOf(t, 2, one, two)
	sealed := func(keys ...bundle.Key) []byte {
		text, err := Seal(sample(), keys...)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for _, c := range []struct {
		name     string
		envelope []byte
		trust    Trust
		want     string // part of the error; empty if Verify succeeds
	}{
		{"both release keys", sealed(one, two), Trust{Release: release}, ""},
		{"one of two release keys", sealed(one), Trust{Release: release}, "too few signatures"},
		{"a site's key", sealed(site), Trust{Release: release, Keys: trustOf(t, 1, site)}, ""},
		{"another key", sealed(site), Trust{Release: release, Keys: trustOf(t, 1, one)}, "add its key to Machine.spec.extensions.keys"},
		{"no keys", sealed(site), Trust{}, "this machine trusts no key for extensions"},
		{"no envelope", []byte("{"), Trust{Release: release}, "not a DSSE envelope"},
		{"too large", make([]byte, MaxStatement+1), Trust{Release: release}, "more than 2048 KiB"},
	} {
		s, err := Verify(c.envelope, c.trust)
		switch {
		case c.want == "" && (err != nil || !reflect.DeepEqual(s, sample())):
			t.Errorf("%s: %v %v", c.name, s, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// Verify rejects a payload of another type, even if a trusted key has signed it.
	other, err := bundle.SignPayload(bundle.TypePayload, []byte("{}"), one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(other, Trust{Release: trustOf(t, 1, one)}); err == nil || !strings.Contains(err.Error(), "payload type") {
		t.Error(err)
	}
	unknown, err := bundle.SignPayload(TypePayload, []byte(`{"name": "x", "more": 1}`), one)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(unknown, Trust{Release: trustOf(t, 1, one)}); err == nil || !strings.Contains(err.Error(), `unknown field "more"`) {
		t.Error(err)
	}
}

// TestArchive checks that two archives of the same extension are equal, and that the manifest names
// the parts of the archive.
func TestArchive(t *testing.T) {
	image := bytes.Repeat([]byte("x"), 4096)
	sum := sha256.Sum256(image)
	part := bundle.Part{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(image))}
	envelope := []byte("{}")
	write := func() ([]byte, string) {
		var b bytes.Buffer
		d, err := Write(&b, "registry.example.com/gvisor:1", time.Unix(1, 0), envelope, part, bytes.NewReader(image))
		if err != nil {
			t.Fatal(err)
		}
		return b.Bytes(), d
	}
	one, digest := write()
	if two, other := write(); !bytes.Equal(one, two) || digest != other {
		t.Error("two archives of the same extension differ")
	}
	manifest, err := Manifest(envelope, part)
	if err != nil {
		t.Fatal(err)
	}
	if own := sha256.Sum256(manifest); digest != "sha256:"+hex.EncodeToString(own[:]) {
		t.Error(digest)
	}
	statement, got, err := Parts(manifest)
	if err != nil || got.SHA256 != part.SHA256 || got.Size != part.Size || statement.Size != 2 {
		t.Errorf("%v %v %v", statement, got, err)
	}
}

// TestParts checks that Parts rejects manifests of other artifacts, and of extensions that are too
// large.
func TestParts(t *testing.T) {
	layer := func(kind, size string) string {
		return `{"mediaType":"` + kind + `","digest":"sha256:` + digestA + `","size":` + size + `}`
	}
	for text, want := range map[string]string{
		"[":  "cannot be read",
		"{}": "it is not an extension",
		`{"artifactType":"` + TypeExtension + `","layers":[` + layer(TypeImage, "1") + `,` + layer(TypeStatement, "1") + `]}`:              "it is not an extension",
		`{"artifactType":"` + TypeExtension + `","layers":[` + layer(TypeStatement, "1") + `,` + layer(TypeImage, "1073741825") + `]}`:     "it is too large",
		`{"artifactType":"` + TypeExtension + `","layers":[` + layer(TypeStatement, "2097153") + `,` + layer(TypeImage, "1") + `]}`:        "it is too large",
		`{"artifactType":"` + TypeExtension + `","layers":[{"mediaType":"` + TypeStatement + `"},` + layer(TypeImage, "1073741825") + `]}`: "is not a SHA-256",
		strings.Repeat(" ", MaxManifest+1): "more than 64 KiB",
	} {
		if _, _, err := Parts([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v", text, err)
		}
	}
}

// FuzzParts checks that Parts accepts no manifest with invalid sizes. Manifests come from a
// registry, so their content is arbitrary.
func FuzzParts(f *testing.F) {
	f.Add([]byte(`{"artifactType":"` + TypeExtension + `","layers":[]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		statement, image, err := Parts(text)
		if err == nil && (statement.Size <= 0 || image.Size <= 0 || image.Size > MaxImage) {
			t.Errorf("%v %v", statement, image)
		}
	})
}
