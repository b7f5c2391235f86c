package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestProfiles checks that every profile of the product is valid.
func TestProfiles(t *testing.T) {
	files, err := filepath.Glob("../profiles/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no profiles found (%v)", err)
	}
	for _, f := range files {
		if _, err := ReadProfile(f); err != nil {
			t.Error(err)
		}
	}
}

// TestHardening checks that every profile requests the same protection from the kernel, and
// contains the module efivarfs. With this module, init reads from the firmware which disk is the
// system disk (docs/decisions/0049-system-disk.md, 0051-kernel-hardening.md).
func TestHardening(t *testing.T) {
	files, err := filepath.Glob("../profiles/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		p, err := ReadProfile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []string{"module.sig_enforce=1", "lockdown=integrity", "proc_mem.force_override=never", "slab_nomerge", "init_on_alloc=1",
			"page_alloc.shuffle=1", "randomize_kstack_offset=on", "vsyscall=none"} {
			if !slices.Contains(p.Kernel.Arguments, a) {
				t.Errorf("%s: kernel.arguments has no %s", f, a)
			}
		}
		if !slices.Contains(slices.Concat(p.Kernel.Initramfs, p.Kernel.Drivers), "efivarfs") {
			t.Errorf("%s: the initramfs has no efivarfs", f)
		}
	}
}

// TestNetworkStorage checks that no profile contains modules of network storage. docs/limits.md
// says that the extension storage has them.
func TestNetworkStorage(t *testing.T) {
	text, err := os.ReadFile("../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	if row := "| volumes of iSCSI, Fibre Channel, Ceph RBD, NBD and NVMe/TCP with the programs of the machine;"; !strings.Contains(string(text), row) {
		t.Fatalf("docs/limits.md has no row %q", row)
	}
	// the directories of the modules in the source tree of the kernel
	missing := map[string]string{
		"nfs": "fs/nfs/", "nfsv4": "fs/nfs/", "iscsi_tcp": "drivers/scsi/", "lpfc": "drivers/scsi/lpfc/", "qla2xxx": "drivers/scsi/qla2xxx/",
		"ceph": "fs/ceph/", "rbd": "drivers/block/", "nbd": "drivers/block/", "nvme-tcp": "drivers/nvme/host/", "nvme-fc": "drivers/nvme/host/",
	}
	files, err := filepath.Glob("../profiles/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no profiles found (%v)", err)
	}
	for _, f := range files {
		p, err := ReadProfile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range slices.Concat(p.Kernel.Initramfs, p.Kernel.Drivers, p.Kernel.Modules) {
			for module, dir := range missing {
				if m == module || strings.HasSuffix(m, "/") && strings.HasPrefix(dir, m) {
					t.Errorf("%s: %s contains the module %s, which the extension storage has", f, m, module)
				}
			}
		}
	}
}

const goodProfile = `name: test
kernel:
  package: linux-image-cloud-amd64
  arguments: [quiet]
  modules: [overlay]
  initramfs: [dm-verity, erofs]
root: {compression: lz4, clusterSize: 16KiB}
disk: {esp: 64MiB, root: 1GiB}
outputs: [disk.raw]
`

func TestReadProfileRefuses(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown field", "disk: {esp", "disk: {efi: 1MiB, esp", ":8: field efi is not a field of DiskProfile"},
		{"wrong type", "modules: [overlay]", "modules: {a: b}", ":5: cannot unmarshal"},
		{"size without unit", "esp: 64MiB", "esp: 64", `:8: size "64": a positive number with KiB, MiB or GiB expected`},
		{"size too small", "esp: 64MiB", "esp: 32MiB", "disk.esp: a multiple of 1MiB, at least 64MiB"},
		{"size not whole", "root: 1GiB", "root: 1025KiB", "disk.root: a multiple of 1MiB"},
		{"no YAML", "name: test", "name: [", "did not find expected"},
		{"two documents", "outputs: [disk.raw]", "outputs: []\n---\na: b", "one YAML document"},
		{"the name of another file", "name: test", "name: metal", `name is "metal": a profile is named like its file, "test"`},
		{"no kernel", "package: linux-image-cloud-amd64", "package: ", "kernel.package is missing"},
		{"no initramfs", "initramfs: [dm-verity, erofs]", "initramfs: []", "kernel.initramfs is empty"},
		{"directory in kernel.initramfs", "initramfs: [dm-verity, erofs]", "initramfs: [drivers/nvme/]", "directories belong into kernel.drivers"},
		{"an argument of the imager", "arguments: [quiet]", "arguments: [orlop.root=1]", "orlop.* are the imager's own"},
		{"argument with a space", "arguments: [quiet]", "arguments: [a b]", "without spaces"},
		{"unknown compression", "compression: lz4,", "compression: xz,", `root.compression is "xz"`},
		{"cluster not whole", "clusterSize: 16KiB", "clusterSize: 5KiB", "root.clusterSize"},
		{"signatures without releaseKeys", "outputs: [disk.raw]", "signatures: 1", "there are no releaseKeys that could sign"},
		{"a negative number of signatures", "outputs: [disk.raw]", "signatures: -1", "signatures is -1"},
		{"support of 40000 days", "outputs: [disk.raw]", "supportDays: 40000", "supportDays: 40000"},
		{"a bundle without a signingKey", "outputs: [disk.raw]", "outputs: [orlop.bundle]", "needs a signingKey"},
		{"no certificate", "outputs: [disk.raw]", "secureBoot: {key: db.key}", "secureBoot.certificate is missing"},
		{"no signer", "outputs: [disk.raw]", "secureBoot: {certificate: db.crt}", "secureBoot: either key or signingCommand expected"},
		{"two signers", "outputs: [disk.raw]", "secureBoot: {certificate: db.crt, key: db.key, signingCommand: [sign]}", "secureBoot: either key or signingCommand expected"},
		{"a signer without a name", "outputs: [disk.raw]", "secureBoot: {certificate: db.crt, signingCommand: [\"\"]}", "secureBoot.signingCommand: the name of a program expected"},
		{"enrollMode without enroll", "outputs: [disk.raw]", "secureBoot: {certificate: db.crt, key: db.key, enrollMode: force}", "there is no directory secureBoot.enroll"},
		{"unknown mode", "outputs: [disk.raw]", "secureBoot: {certificate: db.crt, key: db.key, enroll: keys, enrollMode: always}", `secureBoot.enrollMode is "always": manual, if-safe, force expected`},
		{"recipients without Secure Boot", "disk: {esp", "disk: {recipients: [age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p], esp", "disk.recipients: secureBoot is missing"},
		{"too many recipients", "disk: {esp", "secureBoot: {certificate: db.crt, key: db.key}\ndisk: {recipients: [" + strings.TrimSuffix(strings.Repeat("age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p,", 9), ",") + "], esp", "disk.recipients: recovery key: has 9 recipients, and at most 8"},
		{"unknown field of Secure Boot", "outputs: [disk.raw]", "secureBoot: {cert: db.crt}", "field cert is not a field of SecureBootProfile"},
		{"unknown output", "outputs: [disk.raw]", "outputs: [disk.qcow2]", `outputs: "disk.qcow2" is unknown`},
	} {
		path := filepath.Join(t.TempDir(), "test.yaml")
		text := strings.Replace(goodProfile, c.old, c.new, 1)
		if text == goodProfile {
			t.Fatalf("%s: the replaced text is not in the profile", c.name)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadProfile(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want the file and %q", c.name, err, c.want)
		}
	}
	path := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(path, []byte(goodProfile), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := ReadProfile(path); err != nil || p.Disk.Root != 1<<30 || p.Root.ClusterSize != 16<<10 {
		t.Errorf("the unchanged profile: %+v, %v", p, err)
	}
}

func TestOperatorCA(t *testing.T) {
	dir := t.TempDir()
	none := filepath.Join(dir, "ca.crt")
	if _, err := operatorCA(none); err == nil || !strings.Contains(err.Error(), "orlopctl gen operator --out "+dir) {
		t.Errorf("missing file: error %v, want the command that makes the file", err)
	}
	if data, err := operatorCA(""); data != nil || err != nil {
		t.Errorf("a generic image: %q, %v", data, err)
	}
	certificate := "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"one": {certificate, true}, "two": {certificate + certificate, false}, "a key": {strings.ReplaceAll(certificate, "CERTIFICATE", "PRIVATE KEY"), false}, "text": {"hello", false},
	} {
		if err := os.WriteFile(none, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := operatorCA(none); (err == nil) != c.ok {
			t.Errorf("%s: error %v, accepted should be %v", name, err, c.ok)
		}
	}
}

// TestParseVersion checks that parseVersion reads a version and, from an optional second line, an
// epoch.
func TestParseVersion(t *testing.T) {
	for text, want := range map[string]struct {
		version string
		epoch   int
	}{"0.1.0\n": {"0.1.0", 0}, "0.1.0": {"0.1.0", 0}, "1.2.3\nepoch 4\n": {"1.2.3", 4}, "1.2.3 \n epoch 0": {"1.2.3", 0}} {
		if v, e, err := parseVersion(text); err != nil || v != want.version || e != want.epoch {
			t.Errorf("parseVersion(%q) returns %s, %d, %v", text, v, e, err)
		}
	}
	for _, text := range []string{"1.2.3\n4", "1.2.3\nepoch", "1.2.3\nepoch -1", "1.2.3\nepoch 1\nepoch 2", "1.2.3\nepoch two"} {
		if _, _, err := parseVersion(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// TestSeveralKeys checks that makeKeys makes several private keys and a file with all public keys,
// and that it does not replace existing keys.
func TestSeveralKeys(t *testing.T) {
	dir := t.TempDir()
	if err := makeKeys([]string{"-out", dir, "-count", "3"}); err != nil {
		t.Fatal(err)
	}
	p := &Profile{ReleaseKeys: filepath.Join(dir, "keys.pem"), Signatures: 2}
	_, trust, err := p.trust()
	if err != nil || len(trust.Keys) != 3 || trust.Threshold != 2 {
		t.Errorf("trust has %d keys and the threshold %d, %v; want 3 keys and the threshold 2", len(trust.Keys), trust.Threshold, err)
	}
	for _, name := range []string{"signing-1.key", "signing-2.key", "signing-3.key"} {
		if _, err := readKey(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if err := makeKeys([]string{"-out", dir, "-count", "3"}); err == nil {
		t.Error("makeKeys replaces existing keys")
	}
	p.Signatures = 4
	if _, _, err := p.trust(); err == nil {
		t.Error("a threshold above the number of keys is accepted")
	}
}
