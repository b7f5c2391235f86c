package writelog

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
)

// Piece is a part of an operation that reached the disk: the sectors from From up to, but not
// including, To, counted from the start of the operation.
type Piece struct {
	Op       int // index of the operation
	From, To int64
}

// Survivors draws the content of the disk after a power cut that follows the first n operations.
// The content is the first flushed operations, and pieces of the later operations. A later
// operation is lost, whole or torn with the same probability. Of a torn operation, only the
// beginning or the end is on the disk. An operation with FUA is always whole, and an operation of a
// single sector is lost instead of torn.
func (l *Log) Survivors(n int, r *rand.Rand) (flushed int, pieces []Piece) {
	flushed = l.Flushed(n)
	for i := flushed; i < n; i++ {
		op := l.Ops[i]
		piece := Piece{Op: i, To: op.Sectors}
		switch fate := r.IntN(3); {
		case op.Discard:
			continue
		case op.Through || fate == 0:
		case fate == 1 || op.Sectors < 2:
			continue
		default:
			if at := 1 + r.Int64N(op.Sectors-1); r.IntN(2) == 0 {
				piece.To = at
			} else {
				piece.From = at
			}
		}
		pieces = append(pieces, piece)
	}
	return flushed, pieces
}

// Storage is a disk image.
type Storage interface {
	io.ReaderAt
	io.WriterAt
}

// Disk is a disk image on which a log is replayed. Before the first Set, its content must be the
// image with which the recorded machine was switched on.
type Disk struct {
	Log   *Log
	Image Storage
	done  int    // number of operations on the image
	held  []held // content of the image before the pieces of the last Set
}

type held struct {
	at   int64
	data []byte
}

// ErrAlreadyApplied is the error of Set if the image already has later operations. The caller needs
// a new image.
var ErrAlreadyApplied = errors.New("the disk image is past this instant")

// Set gives the image the content that Survivors has drawn. It first undoes the pieces of the
// previous call. It fails with ErrAlreadyApplied if an earlier call had a higher value of flushed.
func (d *Disk) Set(flushed int, pieces []Piece) error {
	if flushed < d.done {
		return ErrAlreadyApplied
	}
	for i := len(d.held) - 1; i >= 0; i-- { // the last piece first, because pieces may overlap
		if _, err := d.Image.WriteAt(d.held[i].data, d.held[i].at); err != nil {
			return fmt.Errorf("disk image: cannot write: %w", err)
		}
	}
	d.held = nil
	for ; d.done < flushed; d.done++ {
		if err := d.write(Piece{Op: d.done, To: d.Log.Ops[d.done].Sectors}); err != nil {
			return err
		}
	}
	for _, p := range pieces {
		before := held{at: (d.Log.Ops[p.Op].Sector + p.From) * SectorSize, data: make([]byte, (p.To-p.From)*SectorSize)}
		if _, err := d.Image.ReadAt(before.data, before.at); err != nil {
			return fmt.Errorf("disk image: cannot read: %w", err)
		}
		d.held = append(d.held, before)
		if err := d.write(p); err != nil {
			return err
		}
	}
	return nil
}

func (d *Disk) write(p Piece) error {
	op := d.Log.Ops[p.Op]
	if op.Discard {
		return nil
	}
	data := make([]byte, (p.To-p.From)*SectorSize)
	if _, err := d.Log.from.ReadAt(data, op.data()+p.From*SectorSize); err != nil {
		return fmt.Errorf("log of writes: cannot read: %w", err)
	}
	if _, err := d.Image.WriteAt(data, (op.Sector+p.From)*SectorSize); err != nil {
		return fmt.Errorf("disk image: cannot write: %w", err)
	}
	return nil
}
