package boot

import (
	"bytes"
	"crypto/sha256"
	"testing"

	"github.com/orlop-os/orlop/pkg/attest"
	"github.com/orlop-os/orlop/pkg/diskkey"
)

// TestMeasurements checks the values that an attestation reads from a boot image: the digests of
// its sections, in the order in which the stub measures them, of the loader, and of the variables
// of Secure Boot.
func TestMeasurements(t *testing.T) {
	loader := sha256.Sum256([]byte("loader"))
	release := "ID=orlop\n" + string(attest.Fields(loader, map[string][]byte{"PK": []byte("pk"), "db": []byte("db")}))
	sections := []Section{{".osrel", []byte(release)}, {".cmdline", []byte("quiet")}, {".uname", []byte("6.12")}, {".initrd", []byte("ramdisk")}, {".linux", []byte("kernel")}}
	image, err := UKI(stub(t, 7), sections)
	if err != nil {
		t.Fatal(err)
	}
	r, err := attest.ReadImage("1.2.0", "root", image)
	if err != nil {
		t.Fatal(err)
	}
	if r.Version != "1.2.0" || r.Root != "root" || r.Loader != loader || r.Kernel != (attest.Digest{}) || r.Image == (attest.Digest{}) {
		t.Errorf("ReadImage returns %+v", r)
	}
	if len(r.SecureBoot) != 2 || r.SecureBoot["PK"] != attest.VariableDigest("PK", []byte("pk")) || r.SecureBoot["db"] != attest.VariableDigest("db", []byte("db")) {
		t.Errorf("variables %x", r.SecureBoot)
	}
	var want attest.Release
	for _, i := range []int{4, 0, 1, 3, 2} {
		want.Sections = append(want.Sections, attest.Section{Name: sections[i].Name, Digest: sha256.Sum256(sections[i].Content)})
	}
	if r.ImagePCR() != want.ImagePCR() {
		t.Errorf("sections %x, want %x", r.Sections, want.Sections)
	}
	sections[1].Content = []byte("quiet single")
	other, err := UKI(stub(t, 7), sections)
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := attest.ReadImage("1.2.0", "root", other); err != nil || changed.ImagePCR() == r.ImagePCR() || changed.Image == r.Image {
		t.Errorf("an image with another command line has the same digests (%v)", err)
	}
	for _, bad := range []string{"ORLOP_LOADER_DIGEST=12\n", "ORLOP_SECURE_BOOT_PK=xyz\n"} {
		sections[0].Content = []byte(bad)
		if image, err = UKI(stub(t, 7), sections); err != nil {
			t.Fatal(err)
		}
		if _, err := attest.ReadImage("1.2.0", "root", image); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if _, err := attest.ReadImage("1.2.0", "root", []byte("no image")); err == nil {
		t.Error("a file that is not an image is accepted")
	}
}

// TestSignedPCR checks that the machine reads the same value of PCR 11 from a boot image as an
// attestation does, and finds the signatures in the image. The section with the signatures is not
// measured.
func TestSignedPCR(t *testing.T) {
	sections := []Section{{".pcrpkey", []byte("key")}, {".osrel", []byte("ID=orlop\n")}, {".cmdline", []byte("quiet")}, {".linux", []byte("kernel")}}
	unsigned, err := UKI(stub(t, 8), sections)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := UKI(stub(t, 8), append([]Section{{".pcrsig", []byte(`{"sha256":[{"pcrs":[11],"pkfp":"","pol":"","sig":"AQID"}]}`)}}, sections...))
	if err != nil {
		t.Fatal(err)
	}
	for name, image := range map[string][]byte{"unsigned": unsigned, "signed": signed} {
		r, err := attest.ReadImage("1.2.0", "root", image)
		if err != nil {
			t.Fatal(err)
		}
		file := diskkey.Image{ReaderAt: bytes.NewReader(image), Size: int64(len(image))}
		b, err := diskkey.PredictImage(diskkey.Firmware{}, file, file)
		if err != nil {
			t.Fatal(err)
		}
		if b.Image != r.ImagePCR() {
			t.Errorf("%s: PCR 11 is %x, want %x", name, b.Image, r.ImagePCR())
		}
		if found := len(b.Signatures.SHA256) == 1 && string(b.Signatures.SHA256[0].Signature) == "\x01\x02\x03"; found != (name == "signed") {
			t.Errorf("%s: signatures %+v", name, b.Signatures)
		}
	}
}
