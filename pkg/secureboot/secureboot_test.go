package secureboot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// load reads a file of testdata: a boot image, or the signature database db that accepts the signed
// image. The tests of imager/secureboot write these files.
func load(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// firmware creates a directory with EFI variables as efivarfs shows them, and returns its path. The
// keys of variables are the names, its values the contents.
func firmware(t *testing.T, variables map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range variables {
		vendor := globalVendor
		if strings.HasPrefix(name, "db") {
			vendor = databaseVendor
		}
		if err := os.WriteFile(filepath.Join(dir, name+"-"+vendor), append([]byte{6, 0, 0, 0}, content...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRead(t *testing.T) {
	esl := load(t, "db.esl")
	certificate := esl[listHeader+entryHeader:]
	on, off := []byte{1}, []byte{0}
	for name, c := range map[string]struct {
		variables map[string][]byte
		want      string // as JSON
		problem   string
	}{
		"no UEFI":        {nil, `{"mode":"unsupported"}`, ""},
		"setup":          {map[string][]byte{"SecureBoot": off, "SetupMode": on}, `{"mode":"setup"}`, ""},
		"disabled":       {map[string][]byte{"SecureBoot": off, "SetupMode": off, "db": esl}, `{"mode":"disabled","certificates":["` + Fingerprint(certificate) + `"]}`, ""},
		"no setup mode":  {map[string][]byte{"SecureBoot": off}, `{"mode":"disabled"}`, ""},
		"enabled":        {map[string][]byte{"SecureBoot": on, "db": esl, "dbx": esl}, `{"mode":"enabled","certificates":["` + Fingerprint(certificate) + `"],"revocations":1}`, ""},
		"not a flag":     {map[string][]byte{"SecureBoot": {2}}, "", "variable SecureBoot: 06 00 00 00 02 is not a flag"},
		"a long flag":    {map[string][]byte{"SecureBoot": {1, 1}}, "", "is not a flag"},
		"a damaged db":   {map[string][]byte{"SecureBoot": on, "db": esl[:99]}, "", "variable db: signature list: its size"},
		"a large dbx":    {map[string][]byte{"SecureBoot": on, "dbx": make([]byte, 256<<10)}, "", "is larger than"},
		"a damaged dbx":  {map[string][]byte{"SecureBoot": on, "dbx": {1}}, "", "variable dbx: signature list: 1 bytes remain"},
		"a damaged mode": {map[string][]byte{"SecureBoot": off, "SetupMode": {9}}, "", "variable SetupMode"},
	} {
		s, err := Read(firmware(t, c.variables))
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) || strings.Contains(c.problem, "flag") && s.Mode != "" {
				t.Errorf("%s: mode %q, %v, want %s", name, s.Mode, err, c.problem)
			}
			continue
		}
		if text, _ := json.Marshal(s); err != nil || string(text) != c.want {
			t.Errorf("%s: %s, %v; want %s", name, text, err, c.want)
		}
	}
}

// TestReadTruncated checks that a variable shorter than its attributes is an error.
func TestReadTruncated(t *testing.T) {
	dir := firmware(t, map[string][]byte{"SecureBoot": {1}})
	if err := os.WriteFile(filepath.Join(dir, "db-"+databaseVendor), []byte{6}, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), "has 1 bytes, and its attributes 4") {
		t.Error(err)
	}
}

// inProcess returns a Start that runs the code of the checking process in this process, without its
// confinement. It counts the calls in asked, and fails the test if respond does not call the
// function by which the process confines itself.
func inProcess(t *testing.T, asked *int) Start {
	return func(_ context.Context, q []byte, files []*os.File, _ int) ([]byte, error) {
		*asked++
		var out bytes.Buffer
		confined := false
		err := respond(bytes.NewReader(q), &out, files[0], func() error { confined = true; return nil })
		if !confined {
			t.Error("the process answers before it has confined itself")
		}
		return out.Bytes(), err
	}
}

// TestCheck checks that the checking process runs only if Secure Boot is enabled. If the process
// rejects the image or fails, Check returns an error with the reason.
func TestCheck(t *testing.T) {
	signed, esl := load(t, "signed.efi"), load(t, "db.esl")
	on, off := []byte{1}, []byte{0}
	fails := func(context.Context, []byte, []*os.File, int) ([]byte, error) { return nil, errors.New("killed") }
	lies := func(context.Context, []byte, []*os.File, int) ([]byte, error) { return []byte("yes"), nil }
	noisy := func(context.Context, []byte, []*os.File, int) ([]byte, error) {
		return []byte(`{"refused":"` + strings.Repeat("é", 5000) + `"}`), nil
	}
	for name, c := range map[string]struct {
		variables map[string][]byte
		image     []byte
		start     Start // nil for the code of the checking process
		asked     int   // expected number of calls of the checking process
		want      string
	}{
		"no UEFI":           {nil, []byte("no image"), nil, 0, ""},
		"setup":             {map[string][]byte{"SecureBoot": off, "SetupMode": on}, []byte("no image"), nil, 0, ""},
		"accepted":          {map[string][]byte{"SecureBoot": on, "db": esl}, signed, nil, 1, ""},
		"no db":             {map[string][]byte{"SecureBoot": on}, signed, nil, 1, "the firmware would not start it, because Secure Boot is enabled: the boot image is signed by"},
		"revoked":           {map[string][]byte{"SecureBoot": on, "db": esl, "dbx": esl}, signed, nil, 1, "is in dbx"},
		"no signature":      {map[string][]byte{"SecureBoot": on, "db": esl}, []byte("no image"), nil, 1, "is not a 64-bit PE image"},
		"unreadable state":  {map[string][]byte{"SecureBoot": {}}, signed, nil, 0, "the state of Secure Boot cannot be read"},
		"unreadable keys":   {map[string][]byte{"SecureBoot": on, "db": make([]byte, 256<<10)}, signed, nil, 0, "the keys of Secure Boot cannot be read"},
		"the process fails": {map[string][]byte{"SecureBoot": on, "db": esl}, signed, fails, 0, "the signature of the boot image cannot be checked: killed"},
		"an invalid answer": {map[string][]byte{"SecureBoot": on, "db": esl}, signed, lies, 0, "no valid answer"},
		"a long reason":     {map[string][]byte{"SecureBoot": on, "db": esl}, signed, noisy, 0, "Secure Boot is enabled: ???"},
	} {
		asked := 0
		start := c.start
		if start == nil {
			start = inProcess(t, &asked)
		}
		err := Checker{Dir: firmware(t, c.variables), Start: start}.CheckBytes(t.Context(), c.image)
		if asked != c.asked || c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 3000) {
			t.Errorf("%s: %d calls of the process, %v; want %q", name, asked, err, c.want)
		}
	}
	if err := respond(strings.NewReader("no question"), io.Discard, nil, nil); err == nil {
		t.Error("the process answers an invalid request")
	}
}

func FuzzLists(f *testing.F) {
	esl := load(f, "db.esl")
	f.Add(esl)
	f.Add(append(bytes.Clone(esl), esl...))
	f.Fuzz(func(t *testing.T, content []byte) {
		all, err := ParseLists(content)
		size := 0
		for _, e := range all {
			size += entryHeader + len(e.Data)
		}
		if err == nil && size > len(content) {
			t.Errorf("the entries have %d bytes, but the content has %d", size, len(content))
		}
	})
}

// FuzzAccept checks that Accept rejects an image if any byte that the signature covers has changed.
func FuzzAccept(f *testing.F) {
	signed, db := load(f, "signed.efi"), load(f, "db.esl")
	want, err := ParseImage(bytes.NewReader(signed), int64(len(signed)))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(signed)
	f.Add(signed[:len(signed)-9])
	f.Fuzz(func(t *testing.T, image []byte) {
		if Accept(bytes.NewReader(image), int64(len(image)), db, nil) != nil {
			return
		}
		if got, err := ParseImage(bytes.NewReader(image), int64(len(image))); err != nil || got.Digest != want.Digest {
			t.Errorf("an image with the digest %x is accepted (%v)", got.Digest, err)
		}
	})
}

// TestAttributes checks that the signed attributes must contain the digest of the signed content.
func TestAttributes(t *testing.T) {
	signed := load(t, "signed.efi")
	image, err := ParseImage(bytes.NewReader(signed), int64(len(signed)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseSignature(image.Signatures[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := s.check(s.certificates[0], image.Digest); err != nil {
		t.Error(err)
	}
	s.attested = make([]byte, len(s.attested))
	if err := s.check(s.certificates[0], image.Digest); err == nil || err.Error() != "the signed attributes are for another content" {
		t.Errorf("error if the attributes have the digest of another content: %v", err)
	}
}

// TestCheckEnforced checks that only firmware which starts nothing but accepted images passes.
func TestCheckEnforced(t *testing.T) {
	on, off := []byte{1}, []byte{0}
	for _, c := range []struct {
		name      string
		variables map[string][]byte
		want      string // a part of the error; empty: none
	}{
		{"enabled", map[string][]byte{"SecureBoot": on, "SetupMode": off}, ""},
		{"enabled without the variable of the setup", map[string][]byte{"SecureBoot": on}, ""},
		{"disabled", map[string][]byte{"SecureBoot": off, "SetupMode": off}, `"disabled"`},
		{"setup", map[string][]byte{"SecureBoot": off, "SetupMode": on}, `"setup"`},
		{"both", map[string][]byte{"SecureBoot": on, "SetupMode": on}, `"setup"`},
		{"none", nil, `"unsupported"`},
		{"damaged", map[string][]byte{"SecureBoot": on, "SetupMode": {9}}, "cannot be read"},
	} {
		err := CheckEnforced(firmware(t, c.variables))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
