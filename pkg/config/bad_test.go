package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestBad parses every document NAME.yaml of testdata/bad-*.txtar and compares the problems with
// NAME.want. The files contain no certificates and keys: $NAME stands for a value that each run
// generates. The length of a certificate differs between runs, because the DER form of an ECDSA
// signature has 70 to 72 bytes. So no case has a problem behind a certificate on the same line.
// Update the files by -run TestBad -update, and review the difference.
func TestBad(t *testing.T) {
	files, err := filepath.Glob("testdata/bad-*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata has no file bad-*.txtar: %v", err)
	}
	v := values(t)
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		check(t, err)
		var rewritten []txtar.File
		wanted := map[string]string{}
		for _, f := range archive.Files {
			wanted[f.Name] = string(f.Data)
		}
		for _, f := range archive.Files {
			name, isCase := strings.CutSuffix(f.Name, ".yaml")
			if !isCase {
				continue
			}
			_, problems := Parse(f.Name, []byte(expand(t, v, string(f.Data))))
			got := problems.Error() + "\n"
			if len(problems) == 0 {
				t.Errorf("%s: %s: no problem found", file, f.Name)
			} else if !*update && got != wanted[name+".want"] {
				t.Errorf("%s: %s:\n got: %s\nwant: %s", file, f.Name, got, wanted[name+".want"])
			}
			rewritten = append(rewritten, f, txtar.File{Name: name + ".want", Data: []byte(got)})
		}
		if *update {
			archive.Files = rewritten
			check(t, os.WriteFile(file, txtar.Format(archive), 0o644))
		}
	}
}

// TestBadShowsNoSecret checks that no message shows a secret that is in a wrong field.
func TestBadShowsNoSecret(t *testing.T) {
	v := values(t)
	for _, document := range []string{
		"secretsEncryptionKey: [$AES]",
		"secretsEncryptionKey: $AES$AES",
		"pki: {serviceAccountKey: [$SA_KEY]}",
		"pki: {serviceAccountKey: $AES}",
		"pki: {serviceAccountKey: {$SA_KEY: 1}}",
		"pki: {kubernetes: {cert: $SA_KEY, key: $K8S}}",
		"pki: {kubernetes: {cert: $ETCD, key: $K8S_KEY}}",
		"pki: {kubernetes: $K8S_KEY}",
	} {
		text := "apiVersion: orlop.dev/v1alpha1\nkind: Cluster\nmetadata: {name: c}\nspec:\n  " + expand(t, v, document) + "\n"
		_, problems := Parse("", []byte(text))
		if len(problems) == 0 {
			t.Errorf("%s: no problem found", document)
		}
		for _, name := range []string{"AES", "SA_KEY", "K8S_KEY"} {
			// The first line is the same for all PEM keys, so the test searches for a part from the
			// middle of the key.
			secret := v[name][len(v[name])/3 : len(v[name])/3+12]
			if strings.Contains(problems.Error(), secret) {
				t.Errorf("%s: the messages show %s:\n%v", document, name, problems)
			}
		}
	}
}

// TestUnquotedShowsNoSecret checks that a secret that begins like an alias, an anchor or a tag does
// not appear in the messages.
func TestUnquotedShowsNoSecret(t *testing.T) {
	for _, value := range []string{"*Hunter2", "&Hunter2 x", "!Hunter2", "!Hunter2 x", "!!Hunter2 x"} {
		text := "apiVersion: orlop.dev/v1alpha1\nkind: Cluster\nmetadata: {name: c}\nspec:\n  secretsEncryptionKey: " + value + "\n"
		if _, problems := Parse("", []byte(text)); len(problems) == 0 || strings.Contains(problems.Error(), "Hunter2") {
			t.Errorf("%s: %v", value, problems)
		}
		merged, err := Merge([]byte(text), []byte(text))
		if err == nil {
			_, problems := Parse("", merged)
			err = problems
		}
		if strings.Contains(err.Error(), "Hunter2") {
			t.Errorf("%s, as a patch: %v", value, err)
		}
	}
}
