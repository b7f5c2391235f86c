package superblock

import (
	"encoding/binary"
	"io"

	"github.com/google/uuid"
)

// swapKind is the kind of a swap area.
const swapKind = "swap"

// swapPage is the size of a page of swap, in bytes.
const swapPage = 4096

// swapArea reads the header of a swap area after its signature was found (include/linux/swap.h,
// union swap_header). At offset 1024, after the space for a boot loader, the header has the
// version, the number of the last page, the UUID and the label.
func swapArea(r io.ReaderAt) (Content, error) {
	b := make([]byte, 44)
	if err := read(r, b, 1024); err != nil {
		return Content{}, err
	}
	c := Content{Kind: swapKind}
	if binary.LittleEndian.Uint32(b) == 1 {
		c.Size = (uint64(binary.LittleEndian.Uint32(b[4:])) + 1) * swapPage
		c.UUID, c.Label = uuid.UUID(b[12:28]), text(b[28:44])
	}
	return c, nil
}
