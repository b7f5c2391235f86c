package imagestore

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"
)

// anArchive returns a tar archive. Its content does not matter: the field next of the fake daemon
// determines which images an import creates.
func anArchive() io.Reader { return bytes.NewReader(tarOf("oci-layout", "{}")) }

// tarOf returns an archive of one file.
func tarOf(name, content string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	// into memory
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))})
	_, _ = w.Write([]byte(content))
	_ = w.Close()
	return b.Bytes()
}

func gzipped(content []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(content) // into memory
	_ = w.Close()
	return b.Bytes()
}

// The function at returns a file with bytes at an offset.
func at(offset int, magic string) []byte {
	return append(append(bytes.Repeat([]byte{0xa5}, offset), magic...), bytes.Repeat([]byte{0xa5}, 1024)...)
}

// TestRecognised: archive accepts image archives. It recognizes other files by their first bytes,
// and the error names their type.
func TestRecognised(t *testing.T) {
	long := tarOf("blob", strings.Repeat("x", 2*headSize))
	for _, c := range []struct {
		name string
		file []byte
		want string // part of the error; empty if the file is accepted
	}{
		{"tar", tarOf("index.json", "{}"), ""},
		{"long tar", long, ""},
		{"tar by gzip", gzipped(tarOf("index.json", "{}")), ""},
		{"long tar by gzip", gzipped(long), ""},
		{"zstd", []byte("\x28\xb5\x2f\xfd\x00\x00\x00\x00"), ""},
		{"zstd, skippable frame", []byte("\x50\x2a\x4d\x18\x00\x00\x00\x00"), ""},
		{"empty file", nil, "the file is empty"},
		{"empty tar", make([]byte, 10240), "zeros only"},
		{"xz", at(0, "\xfd7zXZ\x00"), "compressed by xz, which is not read; decompress it first (xz -d FILE)"},
		{"bzip2", at(0, "BZh9"), "bzip2"},
		{"lz4", at(0, "\x04\x22\x4d\x18"), "lz4"},
		{"zip", at(0, "PK\x03\x04"), "a zip archive"},
		{"qcow2", at(0, "QFI\xfb"), "a qcow2 disk image"},
		{"squashfs", at(0, "hsqs"), "a squashfs file system"},
		{"ext4", at(1080, "\x53\xef"), "an ext file system"},
		{"iso", at(32769, "CD001"), "an ISO 9660 image"},
		{"gpt", at(512, "EFI PART"), "a disk image (GPT)"},
		{"mbr", at(510, "\x55\xaa"), "a disk image (MBR)"},
		{"elf", at(0, "\x7fELF"), "a program (ELF)"},
		{"deb", at(0, "!<arch>\n"), "ar)"},
		{"page", []byte("\ufeff\r\n <!DOCTYPE HTML><title>404</title>"), "an HTML page"},
		{"page without a type", []byte("<html><body>Sign in"), "an HTML page"},
		{"page by gzip", gzipped([]byte("<html>")), "compressed by gzip: the file is an HTML page"},
		{"empty file by gzip", gzipped(nil), "compressed by gzip: the file is empty"},
		{"twice by gzip", gzipped(gzipped(tarOf("index.json", "{}"))), "more than once"},
		{"damaged gzip", []byte("\x1f\x8b\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), "damaged"},
		{"xml", []byte("<?xml version=\"1.0\"?><Error><Code>AccessDenied"), "an XML document"},
		{"manifest", []byte(` {"schemaVersion": 2}`), "a JSON document"},
		{"lfs", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), "Git LFS"},
		{"text", []byte("Not found\n"), "a text"},
		{"short", []byte{1, 2, 3}, "has 3 bytes"},
		{"noise", bytes.Repeat([]byte{0xa5}, 4096), "begins with the bytes a5 a5"},
		{"damaged header", append([]byte{'?'}, tarOf("index.json", "{}")[1:]...), "no tar archive"},
	} {
		r, err := archive(bytes.NewReader(c.file))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "":
			if all, err := io.ReadAll(r); err != nil || !bytes.Equal(all, c.file) {
				t.Errorf("%s: archive returns %d bytes of %d, %v", c.name, len(all), len(c.file), err)
			}
		case err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), remedy):
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}

// TestRefused: an error of containerd about an archive gets an explanation for the user.
func TestRefused(t *testing.T) {
	for message, want := range map[string]string{
		"unrecognized image format":              "of no image",
		"unexpected EOF":                         "it is cut off",
		"image might be filtered out: not found": "no image for linux/amd64",
		"no space left on device":                "containerd refused the archive: no space left on device",
	} {
		if got := refused(message).Error(); !strings.Contains(got, want) || !strings.Contains(got, message) || strings.Contains(got, "rpc error") {
			t.Errorf("%s: %s", message, got)
		}
	}
}

// FuzzRecognised: rejectedKind does not panic, and accepts no file with fewer than four bytes.
func FuzzRecognised(f *testing.F) {
	f.Add(tarOf("index.json", "{}"))
	f.Add(gzipped(tarOf("index.json", "{}")))
	f.Add(gzipped(gzipped([]byte("<html>"))))
	f.Add([]byte("<html>"))
	f.Fuzz(func(t *testing.T, head []byte) {
		if is := rejectedKind(head, true); is == "" && len(head) < 4 {
			t.Errorf("% x is accepted as an archive", head)
		}
	})
}
