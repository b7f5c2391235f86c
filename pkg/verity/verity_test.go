package verity

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	sampleHash = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	sample     = sampleHash + ",16384,16384,cafe"
)

func TestParse(t *testing.T) {
	p, err := Parse(sample)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := hex.DecodeString(sampleHash)
	if !p.Equal(Params{RootHash: want, DataBlocks: 16384, HashStart: 16384, Salt: []byte{0xca, 0xfe}}) {
		t.Errorf("Parse(%q) = %+v", sample, p)
	}
	if got := p.String(); got != sample {
		t.Errorf("String() = %q, want %q", got, sample)
	}
	if got, want := p.PartUUID().String(), "00010203-0405-0607-0809-0a0b0c0d0e0f"; got != want {
		t.Errorf("PartUUID() = %s, want %s", got, want)
	}
	if p, err := Parse(sampleHash + ",1,1,"); err != nil || len(p.Salt) != 0 {
		t.Errorf("without salt: %+v, %v", p, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ value, reason string }{
		{"", "4 fields"},
		{sampleHash + ",1,1", "3 found"},
		{sample + ",x", "5 found"},
		{"zz" + sampleHash[2:] + ",1,1,", "root hash"},
		{sampleHash[2:] + ",1,1,", "31 bytes"},
		{strings.Repeat("00", 32) + ",1,1,", "all zeros"},
		{sampleHash + ",0,1,", "0 data blocks"},
		{sampleHash + ",-1,1,", "data blocks"},
		{sampleHash + ",268435457,268435457,", "data blocks"},
		{sampleHash + ",8,7,", "starts at block 7"},
		{sampleHash + ",8,99999999999999999999,", "hash start"},
		{sampleHash + ",8,8,abc", "salt"},
		{sampleHash + ",8,8," + strings.Repeat("aa", 65), "salt has 65 bytes"},
	} {
		if _, err := Parse(c.value); err == nil || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("Parse(%q): error %v, want one with %q", c.value, err, c.reason)
		}
	}
}

// image writes a file with the given number of blocks and returns its path. Every seventh block is
// zero, and all others differ.
func image(t *testing.T, blocks int) string {
	t.Helper()
	content := make([]byte, blocks*BlockSize)
	for i := range blocks {
		if i%7 != 3 {
			content[i*BlockSize] = byte(i)
			content[i*BlockSize+9] = byte(i >> 8)
			content[i*BlockSize+100] = 1
		}
	}
	name := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestFormatGivesWhatVeritysetupGives compares Format with an independent program. The expected
// hashes are from veritysetup format --no-superblock --salt cafe --hash-offset <blocks*4096> image
// image.
func TestFormatGivesWhatVeritysetupGives(t *testing.T) {
	for _, c := range []struct {
		blocks int
		hash   string
	}{
		{1, "71a0002fe9f7030265be049023f6c16405143c252fa2c53d91e875e01fcc9b73"},
		{2, "4442168186d949d9dda38c0c780a73f519ea0f2464929d2133814863b24c42e6"},
		{128, "08e4fe92fe334e313fc70b9bda2f4d37cd4005777f1ace3576dee7626ea32337"},
		{129, "b81b8b5a946575036e876fd3fe4a0658a8a73c51715b056c9081a9cba9e75884"},
		{20000, "b3781dd3399bd38c3dfff9c46fcaef02f134e677d1db42d1c2a6a2fa12ec032a"},
	} {
		name := image(t, c.blocks)
		p, err := Format(name, []byte{0xca, 0xfe})
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(p.RootHash); got != c.hash {
			t.Errorf("%d blocks: root hash %s, want %s", c.blocks, got, c.hash)
		}
		tree, err := TreeSize(uint64(c.blocks))
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if want := int64(c.blocks*BlockSize) + int64(tree); info.Size() != want {
			t.Errorf("%d blocks: file has %d bytes, want %d", c.blocks, info.Size(), want)
		}
		if err := Verify(name, p); err != nil {
			t.Errorf("%d blocks: %v", c.blocks, err)
		}
	}
}

// TestVerifyFindsOneByte checks that Verify detects a single changed byte in the data and in the
// tree.
func TestVerifyFindsOneByte(t *testing.T) {
	name := image(t, 300)
	p, err := Format(name, nil)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []int{0, 5 * BlockSize, 300*BlockSize - 1, 300 * BlockSize, len(sealed) - BlockSize} {
		broken := bytes.Clone(sealed)
		broken[offset] ^= 1
		if err := os.WriteFile(name, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Verify(name, p); err == nil {
			t.Errorf("Verify does not detect a change of byte %d", offset)
		}
	}
}

func TestFormatRefuses(t *testing.T) {
	name := filepath.Join(t.TempDir(), "image")
	for _, content := range [][]byte{nil, make([]byte, BlockSize-1)} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Format(name, nil); err == nil {
			t.Errorf("Format accepts an image of %d bytes", len(content))
		}
	}
	if _, err := Format(image(t, 1), make([]byte, MaxSaltSize+1)); err == nil {
		t.Error("Format accepts a salt that is too long")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add(sampleHash + ",1,1,")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		q, err := Parse(p.String())
		if err != nil || !p.Equal(q) {
			t.Errorf("Parse does not return the same parameters for Parse(%q).String(): %v", s, err)
		}
	})
}
