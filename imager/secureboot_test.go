package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/foxboron/go-uefi/authenticode"

	"github.com/orlop-os/orlop/imager/secureboot"
	"github.com/orlop-os/orlop/pkg/bundle"
	machine "github.com/orlop-os/orlop/pkg/secureboot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
)

// siteKeys makes the keys of a site for Secure Boot in a directory.
func siteKeys(t *testing.T, dir string) {
	t.Helper()
	if err := makeSecureBootKeys([]string{"-out", dir, "-name", "A Site"}); err != nil {
		t.Fatal(err)
	}
}

// TestSecureBootImage builds the sample with keys for Secure Boot. Firmware with the site's db must
// accept the boot loader and each boot image. The disk and the network boot image must have the
// enrollment files.
func TestSecureBootImage(t *testing.T) {
	tree := sampleTree(t)
	keys := filepath.Join(tree, "keys")
	siteKeys(t, keys)
	unpacked, err := filepath.Abs("build/cache/kernel")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(unpacked, filepath.Join(tree, "cache/kernel")); err != nil {
		t.Fatal(err)
	}
	out := runSample(t, tree, func(c *exec.Cmd) { c.Env = append(c.Env, sampleKeys+"=keys") })
	get := func(file string) []byte {
		content, err := os.ReadFile(filepath.Join(out, file))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	fat := filepath.Join(t.TempDir(), "esp")
	copyRange(t, filepath.Join(out, outputRaw), fat, 1<<20, int64(sampleDisk.ESP))
	onESP := func(name string) []byte {
		file := filepath.Join(t.TempDir(), "file")
		if msg, err := exec.Command("mcopy", "-i", fat, "::/"+name, file).CombinedOutput(); err != nil {
			t.Fatalf("%s: mcopy: %v\n%s", name, err, msg)
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	db, err := secureboot.Content(onESP(esp.KeysDir + "/db.auth"))
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := readCertificate(filepath.Join(keys, "db.crt"))
	if err != nil {
		t.Fatal(err)
	}
	for name, image := range map[string][]byte{
		"loader": onESP(esp.Loader), "boot image": onESP("EFI/Linux/orlop-9.9.9.efi"), "netboot": get(outputNetboot), "bundle": bundled(t, out, filepath.Join(tree, "release/keys.pem")),
	} {
		if err := machine.Accept(bytes.NewReader(image), int64(len(image)), db, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		parsed, err := authenticode.Parse(bytes.NewReader(image))
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := parsed.Verify(certificate); !ok || err != nil {
			t.Errorf("%s: the library rejects the signature: %v", name, err)
		}
	}
	if want := esp.LoaderConfigText + "secure-boot-enroll if-safe\n"; string(onESP(esp.LoaderConfig)) != want {
		t.Errorf("settings of the loader: %q", onESP(esp.LoaderConfig))
	}
	archive := unpackNetboot(t, out)
	for _, name := range esp.KeyFiles {
		content, err := os.ReadFile(filepath.Join(keys, name))
		if err != nil || !bytes.Equal(content, onESP(esp.KeysDir+"/"+name)) || !bytes.Contains(archive, content) || !bytes.Contains(archive, []byte("system/"+name+"\x00")) {
			t.Errorf("%s: %v; want the file on the ESP and in the network boot image", name, err)
		}
	}
	if !bytes.Contains(archive, []byte("system/loader.conf\x00")) || !bytes.Contains(archive, onESP(esp.Loader)) {
		t.Error("the network boot image lacks the settings of the loader or the signed loader")
	}
	var m Manifest
	readJSON(t, filepath.Join(out, "manifest.json"), &m)
	for _, in := range m.Inputs {
		if strings.HasSuffix(in.Name, ".key") {
			t.Errorf("the manifest has the digest of %s", in.Name)
		}
	}
}

// bundled returns the boot image of the bundle.
func bundled(t *testing.T, out, keys string) []byte {
	t.Helper()
	known, err := os.ReadFile(keys)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := bundle.ParseTrust(known)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(out, outputBundle))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := bundle.Open(f, trust)
	if err == nil {
		err = r.SkipRoot()
	}
	if err != nil {
		t.Fatal(err)
	}
	uki, err := r.UKI()
	if err != nil {
		t.Fatal(err)
	}
	return uki
}

// TestSecureBootRefuses checks that a build rejects keys with which no machine would start.
func TestSecureBootRefuses(t *testing.T) {
	dir := t.TempDir()
	own, other := filepath.Join(dir, "own"), filepath.Join(dir, "other")
	siteKeys(t, own)
	siteKeys(t, other)
	if err := makeSecureBootKeys([]string{"-out", own}); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("makeSecureBootKeys in a directory that has keys: %v", err)
	}
	for _, args := range [][]string{{}, {"-out", dir, "more"}, {"-out", dir, "-name", ""}, {"-out", dir, "-also", filepath.Join(own, "db.key")}} {
		if err := makeSecureBootKeys(args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
	profile := func(change func(*SecureBootProfile)) *SecureBootProfile {
		p := &SecureBootProfile{Certificate: filepath.Join(own, "db.crt"), Key: filepath.Join(own, "db.key"), Enroll: own}
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		profile *SecureBootProfile
		want    string
	}{
		"good":                    {profile(func(*SecureBootProfile) {}), ""},
		"the key of another site": {profile(func(p *SecureBootProfile) { p.Key = filepath.Join(other, "db.key") }), "does not belong to the certificate"},
		"no key":                  {profile(func(p *SecureBootProfile) { p.Key = filepath.Join(own, "none.key") }), "secureBoot.key: open"},
		"no certificate":          {profile(func(p *SecureBootProfile) { p.Certificate = filepath.Join(own, "db.key") }), "secureBoot.certificate: "},
		"a key in the directory of the artifacts": {profile(func(p *SecureBootProfile) { p.Key = filepath.Join(dir, "out", "db.key") }), "move the private key elsewhere"},
		"other enrollment files":                  {profile(func(p *SecureBootProfile) { p.Enroll = other }), "after its enrollment, machines would not start this version"},
		"no enrollment files":                     {profile(func(p *SecureBootProfile) { p.Enroll = dir }), "secureBoot.enroll: open"},
	} {
		err := signSample(c.profile, filepath.Join(dir, "out"))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// signSample signs a boot image with the keys of a profile, and checks the enrollment files.
func signSample(p *SecureBootProfile, out string) error {
	b := &Build{Options: Options{Profile: &Profile{SecureBoot: p}}}
	s, err := p.signer(out)
	if err != nil {
		return err
	}
	b.signer = &s
	image, err := os.ReadFile("../pkg/secureboot/testdata/unsigned.efi")
	if err != nil {
		return err
	}
	if b.uki, err = b.sign(image); err != nil {
		return err
	}
	_, _, err = b.enrollment()
	return err
}
