package verity

import (
	"errors"
	"fmt"
	"os"

	goverity "github.com/containerd/go-dmverity/pkg/verity"
)

// Format computes the dm-verity hash tree of an image file and appends the tree to the same file.
// It returns the parameters for opening the sealed image.
//
// The length of the image must be a multiple of BlockSize; mkfs.erofs writes such images. The file
// must contain only the image. If the file were already sealed, Format would hash its tree as a
// part of the image. The result depends only on the image and the salt. The salt has 0 to
// MaxSaltSize bytes.
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

// TreeSize returns the length, in bytes, of the hash tree of an image with dataBlocks blocks. The
// length for a single block is 0, because the digest of the block is the root hash.
func TreeSize(dataBlocks uint64) (uint64, error) {
	layout := libraryParams(dataBlocks, dataBlocks, nil)
	return goverity.GetHashTreeSize(&layout)
}

// Verify reads every byte of a sealed image, in a file or on a block device. It fails if a block of
// the data or of the tree does not match the root hash. It is for a slot that was just written;
// during a boot, it would take too long.
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

// libraryParams returns the parameters of the fixed layout as the type of the go-dmverity library.
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
