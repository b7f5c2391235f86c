package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	agecrypt "filippo.io/age"
	"filippo.io/age/agessh"
	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/machinetest"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// TestSupportHoldsNoSecret checks that a support bundle contains no secret. The machine has every
// secret that a configuration can have, and its programs have written all of them to every log. The
// test searches for the secrets in the files of the bundle, and in the output of the command.
func TestSupportHoldsNoSecret(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("ORLOP_CONFIG", filepath.Join(dir, "config"))
	operator := filepath.Join(dir, "operator")
	if err := gen.MakeOperator(operator, "test", false); err != nil {
		t.Fatal(err)
	}
	fake := machinetest.New(t, []byte(read(t, filepath.Join(operator, gen.CACert))))
	c, problems := config.Parse("reference.yaml", []byte(config.Reference))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	// The text of the manifest in the add-on also occurs elsewhere in config.Reference, outside of
	// a secret. So the test replaces this manifest by another one.
	c.Addons[0].Spec.Manifests[0] = config.Manifest{Secret: config.NewSecret(
		`{apiVersion: v1, kind: Secret, metadata: {name: token}, stringData: {token: "correct horse battery staple"}}`)}
	secrets := secretsIn(reflect.ValueOf(c))
	if len(secrets) != 23 {
		t.Fatalf("the reference has %d secrets, want 23", len(secrets))
	}
	if err := fake.Configure(c); err != nil {
		t.Fatal(err)
	}
	fake.Slips = slipsOf(secrets)
	if leaked(strings.Join(fake.Slips, "\n"), secrets) == "" {
		t.Fatal("leaked finds no secret in a text with secrets")
	}

	key, err := agecrypt.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	if err := os.Mkdir(out, 0o700); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	if code := run([]string{"support", "--out", filepath.Join(out, "m1.age"), "--to", key.Recipient().String(), "--endpoint", fake.Address, "--fingerprint", fake.Fingerprint,
		"--cert", filepath.Join(dir, "operator", "admin.crt"), "--key", filepath.Join(dir, "operator", "admin.key")}, strings.NewReader(""), &stdout, &stderr); code != exit.OK {
		t.Fatalf("exit status %d: %s", code, stderr.String())
	}
	left, err := os.ReadDir(out)
	if err != nil || len(left) != 1 {
		t.Errorf("the directory does not have the bundle as its only file: %v, %v", left, err)
	}
	written := []byte(read(t, filepath.Join(out, "m1.age")))
	if bytes.Contains(written, []byte("index.json")) {
		t.Error("the support bundle is not encrypted")
	}
	opened, err := decrypted(written, key)
	if err != nil {
		t.Fatal(err)
	}
	files, err := unpacked(opened)
	if err != nil {
		t.Fatal(err)
	}
	files["the output of the command"] = stdout.String() + stderr.String()
	for name, text := range files {
		if found := leaked(text, secrets); found != "" {
			t.Errorf("%s contains %s:\n%s", name, found, text)
		}
	}
	if leak := leaked(string(opened), secrets); leak != "" {
		t.Errorf("the decrypted tar contains %s", leak)
	}

	// The bundle contains the text without secrets, and its index counts the replaced secrets.
	for name, want := range map[string]string{
		"m1/logs/containerd.txt": "the end", "m1/kernel.txt": "Linux version 6.12", "m1/events.txt": "the end", "m1/configuration.yaml": "BEGIN CERTIFICATE",
		"m1/state/memory.json": `"total": 2048`, "m1/audit.jsonl": `"role":"reader"`, "m1/health.json": `"healthy": true`, "m1/version.json": `"1.2.3"`,
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %q:\n%s", name, want, files[name])
		}
	}
	var index supportIndex
	if err := json.Unmarshal([]byte(files["m1/index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	// There are two more files, index.json and the output of the command. But one part has no file,
	// because one service has no log.
	if len(index.Parts)+1 != len(files) {
		t.Errorf("the index names %d parts, and there are %d files, want one more", len(index.Parts), len(files))
	}
	for _, p := range index.Parts {
		if size := len(files["m1/"+p.Name]); size != p.Bytes || p.Had != (p.Problem == "") {
			t.Errorf("the file of part %+v has %d bytes", p, size)
		}
		slipped := p.Name == "state/memory.json" || p.Name == "events.txt" || p.Name == "kernel.txt" || p.Name == "logs/containerd.txt"
		if slipped != (p.Redacted > 0) {
			t.Errorf("%s: %d secrets were replaced, which is only expected in the logs and the memory", p.Name, p.Redacted)
		}
	}
}

// secretsIn returns all secrets in a value: the results of method Reveal.
func secretsIn(v reflect.Value) (found []string) {
	if !v.IsValid() || !v.CanInterface() {
		return nil
	}
	if s, ok := v.Interface().(interface{ Reveal() string }); ok && v.Kind() == reflect.Struct {
		if s.Reveal() == "" {
			return nil
		}
		return []string{s.Reveal()}
	}
	switch v.Kind() {
	case reflect.Pointer:
		return secretsIn(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			found = append(found, secretsIn(v.Field(i))...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			found = append(found, secretsIn(v.Index(i))...)
		}
	}
	return found
}

// slipsOf returns log lines that contain each secret key in every form that redact recognizes, and
// the last line "the end". It omits encryption keys, which redact cannot recognize.
func slipsOf(secrets []string) []string {
	var lines []string
	for _, s := range secrets {
		block, _ := pem.Decode([]byte(s))
		if block == nil {
			continue // 32 random bytes have no pattern
		}
		for line := range strings.Lines(s) {
			lines = append(lines, strings.TrimSpace(line))
		}
		lines = append(lines, "E0504 cannot parse "+strings.ReplaceAll(s, "\n", `\n`)+" as a certificate",
			"client-key-data: "+base64.StdEncoding.EncodeToString([]byte(s)), "key="+base64.StdEncoding.EncodeToString(block.Bytes)+" refused")
	}
	return append(lines, "the end")
}

// leaked returns a description of the first secret that a text contains, in PEM, base64,
// hexadecimal or DER. It returns "" if there is none.
func leaked(text string, secrets []string) string {
	for i, s := range secrets {
		forms := []string{s, base64.StdEncoding.EncodeToString([]byte(s)), hex.EncodeToString([]byte(s))}
		if block, _ := pem.Decode([]byte(s)); block != nil {
			forms = append(forms, base64.StdEncoding.EncodeToString(block.Bytes), hex.EncodeToString(block.Bytes), string(block.Bytes))
		}
		for line := range strings.Lines(s) {
			if line = strings.TrimSpace(line); len(line) >= 32 && !strings.HasPrefix(line, "-----") {
				forms = append(forms, line)
			}
		}
		for _, form := range forms {
			// The search is for a piece from the middle, because the beginning is the same for all
			// keys.
			if piece := form[len(form)/2 : min(len(form), len(form)/2+14)]; strings.Contains(text, piece) {
				return fmt.Sprintf("secret %d, as %q", i, piece)
			}
		}
	}
	return ""
}

// decrypted decrypts a file of age.
func decrypted(bundle []byte, keys ...agecrypt.Identity) ([]byte, error) {
	r, err := agecrypt.Decrypt(bytes.NewReader(bundle), keys...)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// unpacked returns the files of a tar, by name.
func unpacked(archive []byte) (map[string]string, error) {
	files := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		if files[h.Name] != "" || !filepath.IsLocal(h.Name) || h.Typeflag != tar.TypeReg || h.Mode != 0o600 {
			return nil, fmt.Errorf("unexpected entry in the tar: %+v", h)
		}
		files[h.Name] = string(text)
	}
}

// TestSupportPart checks that the index of a bundle reports a part that takes too long, fails or is
// too large, and that the bundle continues with the next part. Ctrl-C ends the whole bundle.
func TestSupportPart(t *testing.T) {
	var out bytes.Buffer
	b := &supportBundle{tar: tar.NewWriter(&out), directory: "m", timeout: time.Millisecond, bytes: maxSupportBytes - 10}
	hangs := func(ctx context.Context) (content, error) { <-ctx.Done(); return textContent("so far\n"), ctx.Err() }
	for name, read := range map[string]reading{
		"hangs":  hangs,
		"fails":  func(context.Context) (content, error) { return content{}, errors.New("no such thing") },
		"large":  func(context.Context) (content, error) { return textContent("eleven byte"), nil },
		"spills": func(context.Context) (content, error) { return content{}, errors.New("bad: https://a:b@c") },
	} {
		if err := b.add(t.Context(), name, read); err != nil {
			t.Error(err)
		}
	}
	want := map[string]supportPart{
		"hangs":  {Name: "hangs", Had: true, Bytes: 7, Problem: "context deadline exceeded"},
		"fails":  {Name: "fails", Problem: "no such thing"},
		"large":  {Name: "large", Problem: "the bundle would have more than 256.0 MiB with it"},
		"spills": {Name: "spills", Problem: "bad: https://(redacted)@c"},
	}
	if len(b.index.Parts) != len(want) {
		t.Errorf("the index has %d parts, want %d", len(b.index.Parts), len(want))
	}
	for _, p := range b.index.Parts {
		if p != want[p.Name] {
			t.Errorf("got %+v, want %+v", p, want[p.Name])
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := b.add(ctx, "stopped", hangs); err == nil {
		t.Error("the bundle continued after Ctrl-C")
	}
	if got := fileName("../Ä b/c-1_d"); got != "_____b_c-1_d" {
		t.Errorf("fileName returns %s", got)
	}
}

// manyLines is a stream of a log. It sends as many lines as its field left says, each with a number
// before the text, and then fails.
type manyLines struct {
	grpc.ClientStream
	left int
	text string
}

func (s *manyLines) Recv() (*api.LogLine, error) {
	if s.left == 0 {
		return nil, errors.New("it broke off")
	}
	s.left--
	return &api.LogLine{Text: fmt.Sprint(s.left, s.text)}, nil
}

// TestSupportLines checks that a part has at most maxPartLines lines and at most maxPartBytes
// bytes, which are the newest lines of the log.
func TestSupportLines(t *testing.T) {
	for _, c := range []struct{ lines, length, want int }{{10, 10, 10}, {maxPartLines + 5, 10, maxPartLines}, {20, 1 << 20, 7}} {
		method := func(context.Context, int, ...grpc.CallOption) (grpc.ServerStreamingClient[api.LogLine], error) {
			return &manyLines{left: c.lines, text: strings.Repeat(".", c.length)}, nil
		}
		got, err := lines(method, 0, func(l *api.LogLine) string { return l.Text })(t.Context())
		kept := bytes.Count(got.text, []byte("\n"))
		if err == nil || kept != c.want || got.older != c.lines-c.want || !bytes.HasPrefix(got.text, fmt.Append(nil, c.want-1, ".")) {
			t.Errorf("%d lines of %d bytes: the part has %d and omits %d; its first line is %.10q; %v", c.lines, c.length, kept, got.older, got.text, err)
		}
	}
}

// TestRecipients checks that recipients accepts each kind of public key, as a text or in a file,
// and that the private key decrypts the result. It also checks that recipients rejects other texts,
// and that the error contains neither a secret key nor the content of a file.
func TestRecipients(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	classic, err := agecrypt.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	hybrid, err := agecrypt.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	public := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	ofSSH, err := agessh.NewEd25519Identity(private)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		to   []string
		keys []agecrypt.Identity
	}{
		{[]string{classic.Recipient().String()}, []agecrypt.Identity{classic}},
		{[]string{hybrid.Recipient().String()}, []agecrypt.Identity{hybrid}},
		{[]string{public + " dora@desk"}, []agecrypt.Identity{ofSSH}},
		{[]string{file("both", "# those who help\n\n"+public+"\r\n"+classic.Recipient().String()+"\n")}, []agecrypt.Identity{ofSSH, classic}},
		{[]string{classic.Recipient().String(), public}, []agecrypt.Identity{ofSSH, classic}},
	} {
		readers, err := recipients(c.to)
		if err != nil {
			t.Errorf("%s: %v", c.to, err)
			continue
		}
		var out bytes.Buffer
		w, err := encrypt(&out, readers)
		if err == nil {
			_, err = w.Write([]byte("text"))
		}
		if err = errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		for _, key := range c.keys {
			if got, err := decrypted(out.Bytes(), key); err != nil || string(got) != "text" {
				t.Errorf("%s: got %q, %v", c.to, got, err)
			}
		}
	}
	for to, want := range map[string]string{
		classic.String(): "it is a secret key",
		file("key.txt", "# public key: "+classic.Recipient().String()+"\n"+classic.String()):             "it is a secret key",
		file("id", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz\n-----END OPENSSH PRIVATE KEY-----\n"): "it is a secret key",
		file("notes", "b3BlbnNz"):                         "expected age1…",
		file("empty", "# nobody\n"):                       "it contains no public key",
		"age1b3BlbnNz":                                    "expected age1…",
		"ssh-dss b3BlbnNz":                                "expected age1…",
		filepath.Join(dir, "none"):                        "nor a file",
		file("large", strings.Repeat("#", maxRecipients)): "it contains no public key",
	} {
		_, err := recipients([]string{to})
		if code, _ := exit.Code(err); err == nil || code != exit.Usage || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "b3BlbnNz") || strings.Contains(err.Error(), classic.String()) {
			t.Errorf("%.20s: got %v, want %s", to, err, want)
		}
	}
}
