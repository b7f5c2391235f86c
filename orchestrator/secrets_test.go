package main

import (
	"bytes"
	"encoding/pem"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// encryptionKey is an encryption key in the API server's EncryptionConfiguration.
var encryptionKey = regexp.MustCompile(`(?m)^\s*secret: *"?([A-Za-z0-9+/=]{20,})"?$`)

// secrets returns, by file, the texts of the machine's private keys and encryption keys that no log
// may contain: the lines of a key in PEM, and each encryption key.
func (m machine) secrets(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	err := filepath.WalkDir(m.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
			if strings.HasSuffix(block.Type, "PRIVATE KEY") {
				lines := strings.Split(strings.TrimSpace(string(pem.EncodeToMemory(block))), "\n")
				all[path] = append(all[path], lines[1:len(lines)-1]...)
			}
		}
		for _, found := range encryptionKey.FindAllSubmatch(content, -1) {
			all[path] = append(all[path], string(found[1]))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{filepath.Join(m.dirs.API, nodespec.Encryption), filepath.Join(m.dirs.Node, nodespec.KubeletServingKey)} {
		if len(all[name]) == 0 {
			t.Errorf("the test finds no key in %s", name)
		}
	}
	return all
}

// leaked returns the files of which at least one secret is in text.
func leaked(secrets map[string][]string, text []byte) []string {
	var files []string
	for file, texts := range secrets {
		if slices.ContainsFunc(texts, func(s string) bool { return bytes.Contains(text, []byte(s)) }) {
			files = append(files, file)
		}
	}
	slices.Sort(files)
	return files
}

// TestConfigurationHasNoSecrets checks that the flags and files of the components contain no keys,
// only the names of the files of keys. The reason is that upstream's components log their flags,
// and that the kubelet logs its whole effective configuration.
func TestConfigurationHasNoSecrets(t *testing.T) {
	spec := testSpec()
	spec.PodCertificates = true
	m := prepare(t, spec)
	secrets := m.secrets(t)
	for _, c := range Services(spec, m.dirs) {
		if files := leaked(secrets, []byte(c.String())); len(files) > 0 {
			t.Errorf("the flags or files of %s contain secrets of the files %v", c.Name, files)
		}
	}
	for file, texts := range secrets {
		for _, s := range texts {
			if got := leaked(secrets, []byte("--flag="+s)); !slices.Contains(got, file) {
				t.Errorf("leaked does not find a secret of %s in a flag, only those of %v", file, got)
			}
		}
	}
}

// logHasNoSecrets checks that a process has logged none of the secrets.
func (p *started) logHasNoSecrets(t *testing.T, secrets map[string][]string) {
	t.Helper()
	content, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	if files := leaked(secrets, content); len(files) > 0 || len(content) == 0 {
		t.Errorf("log %s is empty or contains secrets: it has %d bytes and secrets of the files %v", p.log, len(content), files)
	}
}
