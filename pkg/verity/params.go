// Package verity seals and opens root images. To seal an image, it appends the dm-verity hash tree,
// and encodes the parameters of the tree as an argument of the kernel command line. To open a
// sealed image, it creates a read-only device over the partition with the kernel's verity target,
// which verifies each block that is read.
//
// The layout is fixed: SHA-256, data and hash blocks of 4096 bytes, hash type 1, no superblock.
// Params contains all other values that are needed to open an image. The signed UKI contains
// Params, because the content of the partition is not trusted.
//
// The package does not search for partitions, mount file systems or check signatures. The caller
// finds the partition by Params.PartUUID. The firmware has verified the UKI, and so Params, at
// boot.
package verity

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/orlop-os/orlop/pkg/bootenv"
)

const (
	// BlockSize is the size of data blocks and of hash blocks, in bytes.
	BlockSize = 4096
	// HashSize is the length of a SHA-256 digest, in bytes.
	HashSize = 32
	// MaxSaltSize is the maximum length of a salt in bytes. The maximum of the kernel is 256.
	MaxSaltSize = 64
	// MaxDataBlocks is the maximum number of data blocks. It limits an image to 1 TiB, so offsets
	// in bytes cannot overflow.
	MaxDataBlocks = 1 << 28
	// Argument is the name of the kernel command line argument that contains Params.
	Argument = "orlop.root"
)

// Params are the parameters for opening a sealed image. The zero value is invalid.
type Params struct {
	RootHash   []byte // 32 bytes
	DataBlocks uint64 // length of the image in blocks of BlockSize; at least 1
	HashStart  uint64 // first block of the hash tree on the same device; at least DataBlocks
	Salt       []byte // 0 to MaxSaltSize bytes
}

// FromCommandLine parses the parameters in a kernel command line. It fails if the argument is
// missing, occurs twice or is invalid.
func FromCommandLine(line string) (Params, error) {
	value, found, err := bootenv.Argument(line, Argument)
	if err != nil {
		return Params{}, err
	}
	if !found {
		return Params{}, errors.New("kernel command line has no " + Argument + "= argument")
	}
	return Parse(value)
}

// Parse parses the value of the kernel command line argument orlop.root:
//
//	<root hash, hex>,<data blocks>,<hash start block>,<salt, hex>
//
// It accepts the output of String, and also upper-case hexadecimal digits and leading zeros of a
// number. It fails if a field is missing or invalid, or a value is out of range (Check). The error
// names the field.
func Parse(s string) (Params, error) {
	fields := strings.Split(s, ",")
	if len(fields) != 4 {
		return Params{}, fmt.Errorf("%s: cannot parse %q: 4 fields separated by commas expected, %d found", Argument, s, len(fields))
	}
	var p Params
	var err error
	if p.RootHash, err = hex.DecodeString(fields[0]); err != nil {
		return Params{}, fmt.Errorf("%s: cannot parse root hash %q: %w", Argument, fields[0], err)
	}
	if p.DataBlocks, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return Params{}, fmt.Errorf("%s: cannot parse number of data blocks: %w", Argument, err)
	}
	if p.HashStart, err = strconv.ParseUint(fields[2], 10, 64); err != nil {
		return Params{}, fmt.Errorf("%s: cannot parse hash start block: %w", Argument, err)
	}
	if p.Salt, err = hex.DecodeString(fields[3]); err != nil {
		return Params{}, fmt.Errorf("%s: cannot parse salt %q: %w", Argument, fields[3], err)
	}
	if err := p.Check(); err != nil {
		return Params{}, err
	}
	return p, nil
}

// String returns the parameters in the form that Parse accepts.
func (p Params) String() string {
	return fmt.Sprintf("%x,%d,%d,%x", p.RootHash, p.DataBlocks, p.HashStart, p.Salt)
}

// Check returns an error if a value is out of range.
func (p Params) Check() error {
	switch {
	case len(p.RootHash) != HashSize:
		return fmt.Errorf("%s: root hash has %d bytes, %d expected", Argument, len(p.RootHash), HashSize)
	case bytes.Equal(p.RootHash, make([]byte, HashSize)):
		return errors.New(Argument + ": root hash is all zeros")
	case p.DataBlocks < 1 || p.DataBlocks > MaxDataBlocks:
		return fmt.Errorf("%s: %d data blocks, 1 to %d expected", Argument, p.DataBlocks, uint64(MaxDataBlocks))
	case p.HashStart < p.DataBlocks || p.HashStart > MaxDataBlocks:
		return fmt.Errorf("%s: hash tree starts at block %d, %d to %d expected", Argument, p.HashStart, p.DataBlocks, uint64(MaxDataBlocks))
	case len(p.Salt) > MaxSaltSize:
		return fmt.Errorf("%s: salt has %d bytes, at most %d expected", Argument, len(p.Salt), MaxSaltSize)
	}
	return nil
}

// Equal reports whether p and q describe the same sealed image.
func (p Params) Equal(q Params) bool {
	return bytes.Equal(p.RootHash, q.RootHash) && p.DataBlocks == q.DataBlocks && p.HashStart == q.HashStart && bytes.Equal(p.Salt, q.Salt)
}

// PartUUID returns the unique partition GUID of the partition with this image: the first 128 bits
// of the root hash, in the order in which a GUID is printed. PARTUUID of Linux and PartGUID of
// go-blockdevice use the same order. The version field in the value is arbitrary, contrary to RFC
// 4122, but no reader of a GPT checks the field. The caller must call Check before.
func (p Params) PartUUID() uuid.UUID {
	return uuid.UUID(p.RootHash[:16])
}
