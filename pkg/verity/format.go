package verity

import (
	"errors"
	"fmt"
	"os"

	goverity "github.com/containerd/go-dmverity/pkg/verity"
)

// Format computes the hash tree of the image file and appends it to the same file.
//
// The length of the image must be a multiple of BlockSize (mkfs.erofs ensures that). The file must
// contain only the image: Format is not safe to repeat on a sealed file, because it would also hash
// the tree. The result depends only on the image and the salt. The salt has up to MaxSaltSize
// bytes; it may be empty.
func Format(image string, salt []byte) (Params, error) {
	if len(salt) > MaxSaltSize {
		return Params{}, fmt.Errorf("%s: cannot seal: salt has %d bytes, at most %d expected", image, len(salt), MaxSaltSize)
	}
	info, err := os.Stat(image)
	if err != nil {
		return Params{}, fmt.Errorf("cannot seal root image: %w", err)
	}
	size := info.Size()
	if size == 0 || size%BlockSize != 0 || size/BlockSize > MaxDataBlocks {
		return Params{}, fmt.Errorf("%s: cannot seal: %d bytes are not 1 to %d blocks of %d bytes", image, size, MaxDataBlocks, BlockSize)
	}
	blocks := uint64(size / BlockSize)
	layout := libraryParams(blocks, blocks, salt)
	rootHash, err := goverity.Create(&layout, image, image)
	if err != nil {
		return Params{}, fmt.Errorf("%s: cannot build hash tree: %w", image, err)
	}
	p := Params{RootHash: rootHash, DataBlocks: blocks, HashStart: blocks, Salt: salt}
	return p, p.Check()
}

// TreeSize returns the length of the hash tree for a number of data blocks, in bytes. An image of a
// single block has no tree: its digest is the root hash.
func TreeSize(dataBlocks uint64) (uint64, error) {
	layout := libraryParams(dataBlocks, dataBlocks, nil)
	return goverity.GetHashTreeSize(&layout)
}

// Verify reads the whole sealed image (a file or a block device), and fails if a block of data or
// of the tree does not match the root hash. It reads every byte: use it after writing a slot, not
// at boot.
func Verify(device string, p Params) error {
	if err := p.Check(); err != nil {
		return err
	}
	layout := libraryParams(p.DataBlocks, p.HashStart, p.Salt)
	if err := goverity.Verify(&layout, device, device, p.RootHash); err != nil {
		return errors.Join(fmt.Errorf("%s: does not hold the image with root hash %x", device, p.RootHash), err)
	}
	return nil
}

// libraryParams returns the fixed layout in the form of the library.
func libraryParams(dataBlocks, hashStart uint64, salt []byte) goverity.Params {
	return goverity.Params{
		HashName:       "sha256",
		DataBlockSize:  BlockSize,
		HashBlockSize:  BlockSize,
		DataBlocks:     dataBlocks,
		HashType:       1,
		Salt:           salt,
		SaltSize:       uint16(len(salt)),
		HashAreaOffset: hashStart * BlockSize,
		NoSuperblock:   true,
	}
}
