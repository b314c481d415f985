"""Tests of lifetimes: releases, threads, forks, shutdown."""
